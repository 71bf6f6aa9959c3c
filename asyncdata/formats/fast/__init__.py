"""Blocks of records read by compiled code: the extra ``fast`` (numba).

``choice`` decides whether, ``parsing`` prepares and collects, ``kernels`` is what numba compiles, ``cache`` where the
result is kept.
"""
