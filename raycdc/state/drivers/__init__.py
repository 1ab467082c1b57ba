"""The drivers of a state: their generations, heartbeats, and how a run ended."""
