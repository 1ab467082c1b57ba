"""Kafka topics: a transaction per task partition and epoch; `sink` is the way in."""
