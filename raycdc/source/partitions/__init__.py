"""The common parts of sources with independent logs: the assignment of logs to readers, and the reader."""
