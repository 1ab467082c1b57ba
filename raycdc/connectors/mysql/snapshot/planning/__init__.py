"""Cutting a table into chunks: by which key, and where a chunk ends."""
