"""Tokens: how a text is cut into them, and which inverted list each of them belongs to."""
