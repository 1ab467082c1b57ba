"""The bytes of the log: a dump of the server or files on disk, packets, checksums, compression."""
