"""A loop with flax, optax and Orbax."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
import jax
import optax
import orbax.checkpoint as ocp
from flax import linen

from asyncdata import feed
from tests.feed.trainers.record import EPOCHS, RATE, Kind, Record, batches, per_step


def train(record: Record, kind: Kind, folder: Path, checkpoint: Path | None) -> None:
    """See `Trainer`."""
    model = linen.Dense(1)
    fed = feed.jax(batches(kind))
    weights = model.init(jax.random.key(0), jax.numpy.zeros((1, 1)))
    optimizer = optax.MultiSteps(optax.adam(RATE), per_step(kind))
    state = {"weights": weights, "optimizer": optimizer.init(weights)}
    step = 0
    if checkpoint is not None:
        with ocp.CheckpointManager(checkpoint.parent) as manager:
            step = int(checkpoint.name)
            restored = ocp.args.Composite(state=ocp.args.StandardRestore(state), data=feed.orbax_restore(fed))
            state = manager.restore(step, args=restored)["state"]

    @jax.jit  # type: ignore[untyped-decorator]  # jax is not there where types are checked
    def trained(state: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            return ((model.apply(weights, x[:, None]) - 1) ** 2).mean()

        found, gradients = jax.value_and_grad(loss)(state["weights"])
        updates, after = optimizer.update(gradients, state["optimizer"], state["weights"])
        return {"weights": optax.apply_updates(state["weights"], updates), "optimizer": after}, found

    with ocp.CheckpointManager(folder) as manager:
        while fed.epoch < EPOCHS:
            for number, batch in enumerate(fed, start=1):
                state, loss = trained(state, batch["x"])
                record.add(batch["x"], loss)
                if number % per_step(kind) == 0:
                    step += 1
                    saved = ocp.args.Composite(state=ocp.args.StandardSave(state), data=feed.orbax_save(fed))
                    manager.save(step, args=saved)
                    manager.wait_until_finished()


def path_of(folder: Path, step: int) -> Path:
    """See `Trainer`."""
    return folder / str(step)
