"""The log's side: units, positions, the open epoch, and the sealed part of the stream."""
