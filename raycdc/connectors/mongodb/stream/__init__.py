"""Change streams: raw batches, their events, and the effects on collections."""
