"""The storage of a state's documents: a folder, or an object store with one root object."""
