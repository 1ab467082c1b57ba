"""Iceberg tables through pyiceberg: files that tasks wrote, committed with the vector; `sink` is the way in."""
