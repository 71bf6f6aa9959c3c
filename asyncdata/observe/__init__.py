"""Snapshots in, views out: what a pipeline did, and what limits it."""
