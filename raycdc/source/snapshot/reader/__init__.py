"""The reader's side of incremental snapshots: chunks in flight, and in one of the readers also the log."""
