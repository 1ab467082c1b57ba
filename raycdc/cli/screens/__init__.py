"""The views of a run for people and programs: a live table, plain lines, JSON lines, a status."""
