"""The Kafka cluster: its client, checks, partitions with their offsets, the identity of topics, and outages."""
