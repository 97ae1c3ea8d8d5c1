"""Explanations: why a document has its score, token by token."""
