"""The control API of a running pipeline: its status as one versioned document, and commands about tables."""
