"""Kafka topics that carry changes, as a source: partitions are splits, a format decodes what is in them."""
