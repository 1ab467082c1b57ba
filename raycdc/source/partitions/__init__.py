"""What sources of independent logs share: who reads which of them, and how one is let go."""
