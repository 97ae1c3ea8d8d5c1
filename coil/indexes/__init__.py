"""Indexes on disk as users see them: created, opened, built, searched, explained, changed."""
