"""MySQL and MariaDB: binlog and snapshot, wire bytes to Arrow in compiled loops."""
