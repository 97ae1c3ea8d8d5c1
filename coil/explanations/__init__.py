"""Explanations: why a document scores what it scores, token by token."""
