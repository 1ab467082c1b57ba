"""The binlog as units of a log: opened at a position, verified, filtered and masked."""
