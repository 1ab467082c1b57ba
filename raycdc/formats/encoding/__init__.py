"""Converts batches of changes to bytes of messages."""
