"""Rows that are read once more: backfills, and tables that catch up after a pause."""
