"""What people and programs see of a run: a live table, plain lines, JSON lines, a status."""
