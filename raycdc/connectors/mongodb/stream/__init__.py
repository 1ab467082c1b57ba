"""Change streams: raw batches, events, and the tables that they concern."""
