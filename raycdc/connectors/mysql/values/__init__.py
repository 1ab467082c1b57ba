"""Types and values: MySQL's columns as Arrow has them, and the compiled column loops that log and result sets share."""
