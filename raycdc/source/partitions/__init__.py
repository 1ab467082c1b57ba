"""Parts that sources of independent logs share: which reader reads which log, and how a reader lets go of one."""
