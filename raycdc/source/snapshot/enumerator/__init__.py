"""The enumerator's side of incremental snapshots: what is to be read, and who reads it."""
