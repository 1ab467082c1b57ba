"""The reader's side: chunks in flight, and in one of the readers also the log."""
