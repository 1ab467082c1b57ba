"""Types and values: MySQL's columns in Arrow, and the compiled column loops that log and result sets share."""
