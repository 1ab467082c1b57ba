"""The page of a running pipeline: the files that a browser loads, its authorization, and its content.

`raycdc.server.authorization` logs browsers in, `feed` makes the document that an open page gets every second, and
`routes` has the paths. ``static/`` is the page itself: HTML, CSS and modules as they are, without a build step, which
load nothing from anywhere else.
"""
