"""Commit records: what targets hold after an epoch."""
