"""The connectors: one package for each source, with the same file names in each. They never import one another."""
