"""Collections of a MongoDB replica set or sharded cluster: `sink` first, then `documents` for what a row becomes."""
