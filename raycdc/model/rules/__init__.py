"""Rules of the configuration about tables: selection, routes, transforms, masks, names and layouts.

Pure values.
"""
