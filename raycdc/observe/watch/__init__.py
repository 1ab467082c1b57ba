"""Listeners that report what lasts: stalls, outages of the store, phases of tables, recoveries."""
