"""What the configuration says of tables, as values: selection, routes, transforms, masks, names and layouts of
targets.
"""
