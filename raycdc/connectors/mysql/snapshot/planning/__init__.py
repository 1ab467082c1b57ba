"""Cuts a table into chunks: chooses the key, and finds the end of each chunk."""
