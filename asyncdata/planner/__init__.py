"""Rewrites of plans and divisions of resources: pure functions without clock, loop or socket."""
