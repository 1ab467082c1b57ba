"""The DDL of the log: parsed, applied to the followed tables, and reported as schema change events."""
