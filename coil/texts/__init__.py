"""Texts and where they come from: documents, queries, pairs, judgements and runs, read from files."""
