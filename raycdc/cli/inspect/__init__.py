"""``raycdc inspect``, a module for each of its commands."""
