"""Table maps of the log: their columns, and the plans for decoding rows."""
