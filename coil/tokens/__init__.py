"""Tokens: how a text is split into them, and which inverted list each of them belongs to."""
