"""Tables of PostgreSQL, MySQL and MariaDB: staged in the database, committed by SQL; `sink` is the way in."""
