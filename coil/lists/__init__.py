"""Inverted lists: for each list key, the vectors of all its mentions in the collection."""
