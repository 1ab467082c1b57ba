"""The page of a running pipeline: the files that a browser loads, its authorization, and its content.

`sessions` lets browsers in, `look` is the document that they are sent every second, `feed` makes it for those who look,
and `routes` are the paths of both. ``static/`` is the page itself: HTML, CSS and modules as they are, without a build
step, which load nothing from anywhere else.
"""
