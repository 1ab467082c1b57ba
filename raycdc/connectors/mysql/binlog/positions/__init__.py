"""Positions in the log: files and offsets, GTID sets, marks by which a log is known again."""
