"""Hits: the best documents of a collection for a query, in a fixed order."""
