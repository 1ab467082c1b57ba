"""Statements as text and as values, without regard to any table. Pure."""
