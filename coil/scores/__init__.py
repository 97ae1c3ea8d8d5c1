"""Scores: the equation, in plain loops and in fast implementations."""
