"""The service: indexes over HTTP, and the page."""
