"""Vectors: a language model turns the tokens of a text into small vectors that depend on their context."""
