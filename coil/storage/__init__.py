"""The storage engine: a folder of immutable files, the snapshots that readers hold, and the single writer."""
