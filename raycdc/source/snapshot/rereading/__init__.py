"""Rows that are read a second time: backfills, and tables that catch up after a pause."""
