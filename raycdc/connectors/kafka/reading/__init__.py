"""The reader's side of topics: messages into rows, partitions with their decoders, alignment in event time."""
