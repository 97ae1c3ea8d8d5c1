"""The demo: a collection that comes with every Python, its own documentation, ready to search."""
