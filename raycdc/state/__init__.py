"""Sealed epochs on durable storage: manifests, their codec and store, and decisions about recovery.

No Ray, no Spark.
"""
