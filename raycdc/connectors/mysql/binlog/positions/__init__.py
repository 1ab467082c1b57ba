"""Positions in the log: files and offsets, GTID sets, and marks that identify a log."""
