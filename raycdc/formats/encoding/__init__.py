"""Batches of changes to bytes of messages."""
