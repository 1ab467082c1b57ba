"""XA transactions: their rows are decoded at XA PREPARE, and emitted at XA COMMIT."""
