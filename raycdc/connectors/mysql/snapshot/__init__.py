"""Chunks of a table: planning, key order, and reading one so that it fits the log."""
