"""The binlog as units of a log: opened at a position, proven, filtered and masked."""
