"""The server: connections, catalog, checks, locks and failover."""
