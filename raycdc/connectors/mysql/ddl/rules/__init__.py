"""The rules by which a statement of the log is judged. One loop asks them in order."""
