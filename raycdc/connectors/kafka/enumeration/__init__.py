"""The enumerator's side of topics: partitions, keys that occur in two partitions, and the schemas in force."""
