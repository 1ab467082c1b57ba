"""Events, status, notifications and traces of a run, for people and programs."""
