"""Manifests of sealed epochs: as values, as files, and as changes of the state before."""
