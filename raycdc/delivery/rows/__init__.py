"""Rows of an epoch on their way to targets: the row store makes changes exact, and bad rows are removed."""
