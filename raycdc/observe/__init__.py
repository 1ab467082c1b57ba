"""A run as people and programs see it: events, status, watches, notifications, traces."""
