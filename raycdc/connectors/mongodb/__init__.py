"""MongoDB: collections read by ranges of their keys, raw BSON into Arrow columns."""
