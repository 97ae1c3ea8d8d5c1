"""Indexes on disk as users meet them: created, opened, built, searched, explained, changed."""
