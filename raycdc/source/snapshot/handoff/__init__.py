"""The hand-off from snapshot to log: each log row is dropped, held or emitted, by the chunk that it belongs to."""
