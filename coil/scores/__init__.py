"""Scores: the equation, in plain loops and fast."""
