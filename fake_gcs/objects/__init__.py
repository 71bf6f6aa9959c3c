"""Buckets, objects and generations, and where their bytes are kept."""
