"""Administration of a state, with or without a run: examination, copy, and move to another location."""
