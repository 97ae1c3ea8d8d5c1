"""The storage engine: a folder of immutable files, the state that readers hold, and the one writer."""
