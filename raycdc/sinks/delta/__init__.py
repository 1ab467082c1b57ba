"""Delta Lake tables: files that tasks wrote, committed with the vector; `sink` is the way in."""
