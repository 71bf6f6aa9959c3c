"""Brings the bytes of objects into slabs."""
