"""Rows of an epoch on their way to targets: made exact by the row store, filtered, joined."""
