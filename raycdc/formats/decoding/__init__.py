"""Converts bytes of messages to batches of changes."""
