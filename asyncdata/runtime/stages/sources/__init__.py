"""Stages that elements come from: files, listings, arrays, generators."""
