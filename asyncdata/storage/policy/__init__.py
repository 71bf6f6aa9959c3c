"""Decisions about requests: how many, in which order, for how long, and when to retry. Independent of backends."""
