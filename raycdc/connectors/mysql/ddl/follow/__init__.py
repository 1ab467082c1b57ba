"""Follows tables through the statements of the log: their history, shadow and temporary tables, names, refusals."""
