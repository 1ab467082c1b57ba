"""The log's side of incremental snapshots: units, positions, the open epoch, and the state of the stream."""
