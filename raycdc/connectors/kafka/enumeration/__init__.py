"""The enumerator's side of topics: partitions, keys that move, and the schemas that are in force."""
