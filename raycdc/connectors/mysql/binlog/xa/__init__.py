"""XA transactions: their rows are decoded where they are prepared, and emitted where they are committed."""
