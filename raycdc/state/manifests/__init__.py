"""Manifests of sealed epochs: their values, their files, and their form as differences from an earlier state."""
