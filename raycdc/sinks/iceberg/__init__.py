"""Iceberg tables through pyiceberg: tasks write files, and a commit adds them together with the vector.

`sink` is the entry point.
"""
