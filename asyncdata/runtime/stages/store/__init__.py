"""Stages that keep elements for later: `cache` and `snapshot`."""
