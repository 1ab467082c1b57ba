"""Bytes of messages to batches of changes."""
