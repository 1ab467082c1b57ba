"""Places by path or URL, and the few operations that a state needs of the storage there: folders and object stores."""
