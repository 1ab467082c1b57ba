"""Sinks that only append: Parquet and JSON Lines files, and standard output. `sink` is the entry point for files."""
