"""Hits: the best documents of a segment for a query, in one fixed order."""
