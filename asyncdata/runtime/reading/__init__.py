"""Bytes of objects on their way into slabs."""
