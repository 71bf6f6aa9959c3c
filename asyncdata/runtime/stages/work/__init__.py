"""Stages whose functions run in worker processes or threads."""
