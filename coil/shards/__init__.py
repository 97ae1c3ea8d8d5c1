"""Many indexes searched as one: shards, each with a part of the documents."""
