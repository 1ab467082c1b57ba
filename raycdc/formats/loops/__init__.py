"""Compiled loops of the formats."""
