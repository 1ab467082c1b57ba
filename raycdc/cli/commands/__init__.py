"""Groups of commands under one name, such as ``raycdc tables``: a module each, which `raycdc.cli.app` adds."""
