"""Lines of files that grow, as a source of many logs."""
