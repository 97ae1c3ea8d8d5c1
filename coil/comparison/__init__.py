"""Comparison of systems on test collections: planning, caching, measuring and reporting."""
