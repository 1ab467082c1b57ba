"""Writes changes as rows of an SQLite database."""
