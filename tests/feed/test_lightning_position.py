"""feed.lightning_callback where checkpoints are made by validations: inside, between and behind optimizer steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata import feed
from tests.feed.installed import needed

needed("torch")
needed("lightning")
import lightning  # noqa: E402 -- behind the check
import torch  # noqa: E402 -- behind the check

pytestmark = pytest.mark.filterwarnings("ignore:::lightning", "ignore:The '.*_dataloader' does not have many workers")

EPOCHS, BATCHES = 2, 4


class OneWeight(lightning.LightningModule):  # type: ignore[misc]  # lightning is not there where types are checked
    """As small as a model can be; it notes the batches."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.used: list[Any] = []
        self.most = BATCHES

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        """-1 ends the epoch, and leaves the batch unused."""
        return -1 if batch_idx == self.most else None

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Of one batch."""
        self.used.append(batch.tolist())
        return ((batch - self.weight) ** 2).mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Only the fact matters."""

    def configure_optimizers(self) -> Any:
        """Without a state."""
        return torch.optim.SGD(self.parameters(), 0.1)


class Saved(lightning.pytorch.callbacks.Checkpoint):  # type: ignore[misc]  # as above
    """Saves a checkpoint in each validation, of which there is one behind each batch, and one of the first epoch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Its name is the number of batches that were trained on."""
        trainer.save_checkpoint(self._folder / f"{len(pl_module.used)}.ckpt")

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """When Lightning saves the checkpoint of an epoch, too."""
        if trainer.current_epoch == 0:
            trainer.save_checkpoint(self._folder / "epoch.ckpt")


def batches(*, known: bool) -> Any:
    """Of another order in each epoch."""
    ds = ad.Dataset.range(2 * BATCHES).shuffle(8, seed=3).map(np.float32).batch(2)
    return feed.torch(ds if known else ds.filter(lambda _: True))


def trained(fed: Any, folder: Path, checkpoint: Path | None = None, **settings: Any) -> tuple[list[Any], float]:
    """The batches that were trained on, and the weight that they made."""
    module = OneWeight()
    module.most = settings.pop("most", BATCHES)
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        val_check_interval=1,
        callbacks=[feed.lightning_callback(fed), Saved(folder)],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **settings,
    )
    trainer.fit(module, fed, feed.torch(ad.Dataset.range(2).batch(2)), ckpt_path=checkpoint)
    return module.used, module.weight.item()


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("per_step", [1, 2])
def test_a_run_goes_on_from_the_checkpoint_of_a_validation(*, known: bool, per_step: int, tmp_path: Path) -> None:
    """With the batches behind the last optimizer step, where an epoch ends, too."""
    first, again = tmp_path / "first", tmp_path / "again"
    whole, weight = trained(batches(known=known), first, accumulate_grad_batches=per_step)
    assert len(whole) == EPOCHS * BATCHES
    for trained_on in range(1, len(whole)):
        checkpoint = first / f"{trained_on}.ckpt"
        rest = trained(batches(known=known), again, checkpoint, accumulate_grad_batches=per_step)
        assert rest == (whole[trained_on // per_step * per_step :], weight)


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("shortened", [{"limit_train_batches": 3}, {"most": 3}])
def test_a_shortened_epoch_is_followed_by_the_next_one(
    *, known: bool, shortened: dict[str, Any], tmp_path: Path
) -> None:
    """What Lightning or the module leave of an epoch is left, in a run that goes on, too."""
    whole, weight = trained(batches(known=known), tmp_path / "first", **shortened)
    assert len(whole) == EPOCHS * 3
    for name in ("3", "epoch"):
        rest = trained(batches(known=known), tmp_path / "again", tmp_path / "first" / f"{name}.ckpt", **shortened)
        assert rest == (whole[3:], weight)


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
def test_another_fit_begins_with_the_first_epoch(*, known: bool, tmp_path: Path) -> None:
    """Lightning numbers the epochs, whether it asks for a batch ahead or not."""
    fed = batches(known=known)
    assert trained(fed, tmp_path) == trained(fed, tmp_path)
