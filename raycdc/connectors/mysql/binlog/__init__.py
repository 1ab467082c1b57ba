"""The binlog: its events on the wire and on disk, its positions, and the compiled decoder from events to Arrow.

**Special events.** Compressed transactions (zstd) and MariaDB's compressed events are expanded into a buffer that the
same compiled loops walk (`expand.py`). Updates that log JSON values as differences are completed in this buffer, too
(`partial_updates.py`). Rows of a prepared XA transaction wait, decoded and masked, inside the position itself
(`xa_rows.py`, `BinlogOffset.prepared`), so a checkpoint holds them; they are emitted at XA COMMIT. Of tables that are
not selected, only the names are kept. If such a table is selected before XA COMMIT, its snapshot lacks these rows, so
the table is parked. All tables are parked at the XA COMMIT of a transaction that was prepared before the job began.

**Large files.** Event headers have only 32 bits of a position; the upper bits are counted. If a dump by GTID jumps in a
file beyond 4 GiB, the file's size and the server tell where it jumped to (`file_offsets.py`).

**Starts and other servers.** A start in the past (`raycdc.connectors.mysql.log.startup`) reads the log once from there
to its end, without rows: it finds the exact GTID set at that position, and derives the tables of that time from the
present ones by reverting the statements in between. A position belongs to one server (its UUID; on MariaDB its id, and
the transactions before the byte). If a different server answers, at a start or at a reconnect, the enumerator finds the
position of our GTIDs in that server's log before it assigns the log to a reader
(`raycdc.connectors.mysql.server.failover`, `resume_point`). That position is used if executed ⊇ ours ⊇ purged;
otherwise the run is refused with an error that lists the transactions. From then on nothing is compared with the old
server's numbers. Log and chunk readers refuse to work with any server but the position's.
"""
