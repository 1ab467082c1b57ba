"""Sources: one package each, with the same file names in each. They never import one another."""
