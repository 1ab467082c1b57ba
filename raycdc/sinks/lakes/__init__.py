"""Parts that the sinks of lakes share: columns, ownership, statistics, table maintenance."""
