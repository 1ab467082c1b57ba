"""Cutting collections, and reading one chunk."""
