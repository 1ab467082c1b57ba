"""Administration of a state while a run goes on or not: examination, copy, and move to another location."""
