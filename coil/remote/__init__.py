"""Indexes on a server, used like local ones."""
