"""Coordinator and readers as Ray actors."""
