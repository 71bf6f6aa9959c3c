"""Stages that look at one element after the other."""
