"""One function per framework. A framework is imported when its function is called, and not before."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from asyncdata import arguments
from asyncdata.dataset.dataset import Dataset
from asyncdata.feed.ranks import Division, Even

if TYPE_CHECKING:
    from asyncdata.feed.jax_arrays import Dtypes, JaxFeed
    from asyncdata.feed.keras_dataset import KerasFeed
    from asyncdata.feed.pytorch import TorchFeed


def torch(
    dataset: Dataset,
    *,
    device: Any = None,
    pin: bool | None = None,
    depth: int = 2,
    even: Even | None = "drop",
    rank: int | None = None,
    world: int | None = None,
    shard: bool = True,
    deadline_s: float = 600.0,
) -> TorchFeed:
    """Feeds PyTorch: each iteration is an epoch of the dataset, as tensors.

    A tensor on the host is the batch's own memory, not a copy. Read-only arrays are copied, because torch has no
    read-only tensors. `BytesArray`, `RaggedArray`, texts and objects stay what they are.

    The feed has ``state_dict()`` and ``load_state_dict(state)``, which mean the batches that the loop was given;
    ``commit()``, for trainers that ask for batches ahead of using them; ``dataloader()``, for those that insist on a
    DataLoader; ``set_epoch(epoch)``, ``epoch``, ``dataset`` (what this process reads), and a length if it is known.

    Args:
        dataset: Gives whole batches: `batch` belongs to the dataset.
        device: Where the tensors go, such as ``"cuda"``. Copies run on a stream of their own, from pinned memory that
            is used again. None: tensors stay on the host.
        pin: Whether copies to the device go through pinned memory. None: those to CUDA and XPU devices do.
        depth: Batches that are on their way to the device while one is used. Each needs the memory of a batch there,
            and as much pinned memory here.
        even: What makes all processes take the same number of steps. ``"drop"`` ends with the process that has the
            fewest batches; ``"repeat"`` lets the others read their part again; ``"pad"`` gives them batches without
            data, and makes each element ``(batch, mask)``, where the mask is True for rows that count. If the numbers
            are not known in advance, the processes agree every four steps. ``"agree"`` is "drop" that always does.
            None: each process takes its own number of steps.
        rank: Number of this process; None: as ``torch.distributed`` says, else ``RANK``, else 0.
        world: How many processes there are; None: as ``torch.distributed`` says, else ``WORLD_SIZE``, else 1.
        shard: Whether each process gets a part of its own, taken as near to the source as possible: files, where the
            dataset lists files. False: the dataset is divided already, or all processes read all of it.
        deadline_s: How long, in seconds, a process waits for the others to agree.

    Raises:
        ModuleNotFoundError: PyTorch is not installed.
        PipelineError: When the iteration begins: the dataset is sharded already; or in a worker process of a
            DataLoader, because there ``num_workers=0`` is needed.

    Example:
        >>> import asyncdata as ad
        >>> from asyncdata import feed
        >>> ds = ad.Dataset.range(1000).shuffle(1000, seed=1).batch(100)
        >>> batches = feed.torch(ds)  # doctest: +SKIP
        >>> for epoch in range(2):  # doctest: +SKIP
        ...     for batch in batches:
        ...         loss = model(batch)
        ...     torch.save({"model": model.state_dict(), "data": batches.state_dict()}, "checkpoint.pt")
    """
    division = Division(rank=rank, world=world, shard=shard, even=even)
    arguments.integer("depth", depth, least=1, most=8)
    arguments.flag_or_none("pin", pin)
    arguments.number("deadline_s", deadline_s, above=0)
    made: TorchFeed = _module("torch", "pytorch").TorchFeed(
        dataset, division, device=device, pin=pin, depth=depth, deadline_s=deadline_s
    )
    return made


def jax(
    dataset: Dataset,
    *,
    sharding: Any = None,
    depth: int = 2,
    dtypes: Dtypes = None,
    even: Even | None = "drop",
    rank: int | None = None,
    world: int | None = None,
    shard: bool = True,
) -> JaxFeed:
    """Feeds JAX: each iteration is an epoch of the dataset, as jax arrays.

    On the CPU an array whose leaf begins on a 64-byte boundary is the batch's own memory, as those are that workers
    write. `BytesArray`, `RaggedArray`, texts and objects stay on the host.

    The feed has ``state_dict()``, ``load_state_dict(state)``, ``commit()``, ``set_epoch(epoch)``, ``epoch``,
    ``dataset`` and a length, as `torch` describes.

    Args:
        dataset: Gives whole batches; with `sharding` in several processes, each process's rows of a batch.
        sharding: A ``jax.sharding.Sharding`` of the batches, first axis first; an array with fewer axes takes the
            beginning of its ``PartitionSpec``. None: the default device.
        depth: Batches that are sent to the devices while one is used.
        dtypes: None: a type that jax would change, such as int64 without x64, is an error. ``"jax"``: values are
            converted; one that does not fit is an error.
        even: See `torch`.
        rank: Number of this process; None: its place among those whose devices hold different rows by `sharding`, or
            ``jax.process_index()``.
        world: How many such places there are.
        shard: See `torch`.

    Raises:
        ModuleNotFoundError: JAX is not installed.
        PipelineError: During iteration: the dataset is sharded already; a type would change; or a batch cannot be
            divided among the devices, with both numbers.

    Example:
        >>> import asyncdata as ad
        >>> from asyncdata import feed
        >>> ds = ad.Dataset.range(1000, output_type="int32").batch(100)
        >>> batches = feed.jax(ds)  # doctest: +SKIP
        >>> for batch in batches:  # doctest: +SKIP
        ...     state = step(state, batch)
    """
    division = Division(rank=rank, world=world, shard=shard, even=even)
    arguments.integer("depth", depth, least=0, most=8)
    arguments.choice("dtypes", dtypes, ("jax", None))
    made: JaxFeed = _module("jax", "jax_arrays").JaxFeed(
        dataset, division, sharding=sharding, depth=depth, dtypes=dtypes
    )
    return made


def keras(
    dataset: Dataset,
    *,
    steps: int | None = None,
    rank: int | None = None,
    world: int | None = None,
    shard: bool = True,
) -> KerasFeed:
    """Feeds Keras: a ``keras.utils.PyDataset`` for ``fit``, ``evaluate`` and ``predict``, on every backend.

    The elements of the dataset are ``(inputs,)``, ``(inputs, targets)`` or ``(inputs, targets, sample_weights)``. The
    feed is one endless sequence of batches: every epoch of Keras takes the next ``steps`` of it. TensorFlow is not
    needed with another backend.

    ``state_dict()`` and ``load_state_dict(state)`` save and load the position, and ``callback(path)`` does both during
    ``fit``, beside ``BackupAndRestore``. ``close()`` ends the pipeline.

    Args:
        dataset: Gives whole batches.
        steps: Batches of an epoch of Keras; None: as many as the dataset has, or the rank that has the fewest.
        rank: Number of this process; None: ``RANK`` in the environment, else 0.
        world: How many processes there are; None: ``WORLD_SIZE``, else 1.
        shard: See `torch`.

    Raises:
        ModuleNotFoundError: Keras or its backend is not installed.
        PipelineError: The number of batches is not known, and `steps` is missing; or there is none.

    Example:
        >>> import numpy as np
        >>> import asyncdata as ad
        >>> from asyncdata import feed
        >>> x, y = np.random.rand(100, 4), np.random.rand(100)
        >>> ds = ad.Dataset.from_tensor_slices((x, y)).shuffle(100, seed=1).batch(10)
        >>> model.fit(feed.keras(ds), epochs=2)  # doctest: +SKIP
    """
    division = Division(rank=rank, world=world, shard=shard, even=None)
    arguments.integer_or_none("steps", steps, least=1)
    made: KerasFeed = _module("keras", "keras_dataset").KerasFeed(dataset, division, steps)
    return made


def _module(package: str, name: str) -> Any:
    """The file of a framework.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    try:
        return importlib.import_module(f"asyncdata.feed.{name}")
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ModuleNotFoundError(f"feed.{package} needs {package}: pip install 'asyncdata[{package}]'") from error
