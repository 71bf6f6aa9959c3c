"""Feeds the accelerator, in the framework that the training loop is written in."""

from __future__ import annotations

from asyncdata.feed.frameworks import (
    jax,
    keras,
    lightning_callback,
    orbax_restore,
    orbax_save,
    tensorflow,
    torch,
    transformers_callback,
)

__all__ = [
    "jax",
    "keras",
    "lightning_callback",
    "orbax_restore",
    "orbax_save",
    "tensorflow",
    "torch",
    "transformers_callback",
]
