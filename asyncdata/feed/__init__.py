"""Feeds the accelerator, in the framework that the training loop is written in."""

from __future__ import annotations

from asyncdata.feed.frameworks import jax, keras, torch

__all__ = ["jax", "keras", "torch"]
