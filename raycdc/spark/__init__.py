"""Spark: the session and its life during a run, stage tasks, derived segments, and tables as DataFrames."""
