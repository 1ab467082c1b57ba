"""Parses statements into values, without regard to any table. Pure."""
