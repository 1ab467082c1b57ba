"""Locations by path or URL, and the operations on files and objects there, in folders and object stores."""
