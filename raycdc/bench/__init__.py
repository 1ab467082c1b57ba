"""Measures a user's own pipeline: the cutting of its tables, and the duration of a run."""
