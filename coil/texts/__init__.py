"""Texts and their sources: documents, queries, pairs, judgements and runs, read from files."""
