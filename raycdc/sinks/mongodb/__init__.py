"""Collections of a MongoDB replica set or sharded cluster.

`sink` is the entry point, and `documents` has the form of rows.
"""
