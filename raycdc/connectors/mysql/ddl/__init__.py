"""DDL of the log: parsed, applied to the tables being followed, and told as schema change events."""
