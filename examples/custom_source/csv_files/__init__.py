"""CSV files that grow, as a source."""
