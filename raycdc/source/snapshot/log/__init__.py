"""The log's side: units, positions, the open epoch, and what is sealed of the stream."""
