"""The reader side that connectors share: fetchers, the threads that block on a source."""
