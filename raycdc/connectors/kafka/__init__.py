"""Kafka topics with change events as a source: partitions are splits, and a format decodes the messages."""
