"""The binlog: events on the wire and on disk, positions in it, and the compiled decoder from events to Arrow."""
