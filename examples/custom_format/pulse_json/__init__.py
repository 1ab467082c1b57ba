"""Change messages of Pulse, an imaginary tool, for raycdc."""
