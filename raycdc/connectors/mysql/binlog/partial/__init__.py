"""Completes updates that log JSON values as differences."""
