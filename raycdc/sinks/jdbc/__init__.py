"""Tables of PostgreSQL, MySQL and MariaDB: rows are staged in the database and committed by SQL.

`sink` is the entry point.
"""
