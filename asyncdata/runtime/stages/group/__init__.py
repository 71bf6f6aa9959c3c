"""Stages that make one element of several."""
