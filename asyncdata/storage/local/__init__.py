"""Local paths and ``file://`` URLs."""
