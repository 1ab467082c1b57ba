"""Readers of targets, one per sink: they read what is there, by others' libraries, and know nothing of its writer."""
