"""Collections of a MongoDB replica set or sharded cluster: read `sink` first, then `documents` for the form of rows."""
