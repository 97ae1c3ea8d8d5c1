"""Tokens: how a text is split into tokens, and which inverted list each one belongs to."""
