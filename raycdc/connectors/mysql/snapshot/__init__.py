"""Plans the chunks of a table, compares their keys, and reads one chunk so that it fits the log."""
