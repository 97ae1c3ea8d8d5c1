"""Shards on a Ray cluster: built by its workers, and served by its replicas."""
