"""The rules by which a statement of the log is judged, asked in one loop."""
