"""``raycdc check`` and ``raycdc plan``: what a run would find and do, asked beforehand."""
