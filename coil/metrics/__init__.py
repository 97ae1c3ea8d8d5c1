"""Metrics: how good a ranking is, and whether a difference could be due to chance."""
