"""Where the documents of a state lie: a folder, or an object store with one root object."""
