"""The server itself: connections, catalog, checks, locks, failover, and where a pipeline starts in its log."""
