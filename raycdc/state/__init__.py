"""Sealed epochs on durable storage: manifest format, codec, store, recovery decisions. No Ray, no Spark."""
