"""The page of a running pipeline: the files that a browser loads, its authorization, and its content.

`raycdc.server.authorization` logs browsers in, `feed` makes the document that an open page gets every second, and
`routes` has the paths. ``static/`` has the page itself: HTML, CSS and JavaScript modules, without a build step. They
load nothing from other servers.
"""
