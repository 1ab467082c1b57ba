"""Changes as rows of an SQLite database, for raycdc."""
