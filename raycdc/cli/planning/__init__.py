"""``raycdc check`` and ``raycdc plan``: predict what a run would find and do."""
