"""Rules of the configuration about tables, as values: selection, routes, transforms, masks, names and layouts."""
