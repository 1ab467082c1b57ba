"""A table's life under a log: its states, what parks it, what starts its snapshot again, and commands about it."""
