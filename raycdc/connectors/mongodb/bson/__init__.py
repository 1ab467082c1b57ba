"""BSON documents into Arrow columns, in compiled loops."""
