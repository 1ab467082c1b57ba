"""The common parts of connectors' readers, such as fetchers, the threads that block on a source."""
