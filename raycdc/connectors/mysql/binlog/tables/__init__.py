"""Table maps: their columns, and the plans by which rows are decoded."""
