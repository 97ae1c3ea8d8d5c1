"""Indexes on a server, asked as if they were here."""
