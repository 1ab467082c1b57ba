"""Table maps: what they say of columns, and the plans by which rows are decoded."""
