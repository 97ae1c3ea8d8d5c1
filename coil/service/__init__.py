"""The HTTP service and its search page."""
