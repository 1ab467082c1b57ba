"""The process of a reader: threads, fetchers, output, heartbeats."""
