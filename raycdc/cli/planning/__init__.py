"""``raycdc check`` and ``raycdc plan``: predict the findings and actions of a run."""
