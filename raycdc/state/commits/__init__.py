"""Commit records: the epochs that targets hold."""
