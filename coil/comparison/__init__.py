"""Comparing systems on one collection: planning, caching, measuring and reporting."""
