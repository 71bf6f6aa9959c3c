"""Writes records and shards from Python."""
