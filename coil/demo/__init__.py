"""The demo: a search over the documentation of Python's standard library, which every Python includes."""
