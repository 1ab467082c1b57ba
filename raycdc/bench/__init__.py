"""A user's own pipeline measured: how its tables are cut, and how long a run takes."""
