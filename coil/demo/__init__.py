"""The demo: a collection that every Python carries with it, its own documentation, ready to be searched."""
