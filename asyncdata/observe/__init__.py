"""Snapshots of what a pipeline did and what limits it."""
