"""A source of CSV files that grow."""
