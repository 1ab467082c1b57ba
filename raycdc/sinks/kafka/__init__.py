"""Kafka topics: rows of an epoch are written in one transaction per part. `sink` is the entry point."""
