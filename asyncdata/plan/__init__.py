"""Frozen nodes that describe a pipeline and do not know how it runs."""
