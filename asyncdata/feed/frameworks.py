"""One function per framework. A framework is imported when its function is called, and not before."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from asyncdata import arguments
from asyncdata.dataset.dataset import Dataset
from asyncdata.feed.ranks import Division, Even

if TYPE_CHECKING:
    from asyncdata.feed.jax_arrays import Dtypes, JaxFeed
    from asyncdata.feed.keras_dataset import KerasFeed
    from asyncdata.feed.lightning_position import LightningCallback
    from asyncdata.feed.orbax_items import HasState, PositionRestore, PositionSave
    from asyncdata.feed.pytorch import TorchFeed
    from asyncdata.feed.tensorflow_dataset import TfDataset
    from asyncdata.feed.transformers_position import TransformersCallback


_SHORTEST_S: Final = 0.001
_LONGEST_S: Final = 1e9
"""PyTorch counts milliseconds, and knows no time without end."""


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
    depth = arguments.integer("depth", depth, least=1, most=8)
    pin = arguments.flag_or_none("pin", pin)
    deadline_s = arguments.number("deadline_s", deadline_s, least=_SHORTEST_S, most=_LONGEST_S)
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
        dtypes: None: a type that jax would change, such as int64 without x64, is an error. ``"jax"``: batches are
            written in the types of jax, or converted if a later step may read them; a value that does not fit is an
            error.
        even: See `torch`. With ``"pad"`` a batch that has fewer rows than others is filled up with rows that the mask
            marks as no data, as sharding needs it; what stays on the host is not.
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
    depth = arguments.integer("depth", depth, least=0, most=8)
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

    ``backup(path)`` is a callback that saves the training run and resumes it, also inside an epoch.
    ``callback(path)`` saves the position beside ``BackupAndRestore``; ``state_dict()`` and ``load_state_dict(state)``
    save and load it by hand. ``close()`` ends the pipeline.

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
    steps = arguments.integer_or_none("steps", steps, least=1)
    made: KerasFeed = _module("keras", "keras_dataset").KerasFeed(dataset, division, steps)
    return made


def tensorflow(
    dataset: Dataset,
    *,
    output_signature: Any = None,
    even: Even | None = "drop",
    rank: int | None = None,
    world: int | None = None,
    shard: bool = True,
) -> TfDataset:
    """Feeds TensorFlow: a ``tf.data.Dataset``, each iteration of which is the next epoch of the dataset.

    TensorFlow takes the memory of a batch over where its leaves begin on 64-byte boundaries, as those do that workers
    write. A `BytesArray` becomes a tensor of strings, a `RaggedArray` a ``tf.RaggedTensor``. The cardinality is set if
    it is known. TensorFlow does not shard it once more (``AutoShardPolicy.OFF``): a strategy in one process divides
    each batch among its replicas.

    TensorFlow asks ahead, and such a dataset has no state. To resume inside an epoch, train with `keras`, which also
    works on TensorFlow's backend.

    Args:
        dataset: Gives whole batches.
        output_signature: ``tf.TypeSpec`` of the elements, with ``even="pad"`` those of batch and mask. None: as
            `Dataset.element_spec` says; if that does not know the types, as after `map`, one batch is read to learn
            them, of which only the number of rows may differ.
        even: See `torch`; here the numbers of batches must be known in advance.
        rank: Number of this process; None: ``RANK`` in the environment, else 0.
        world: How many processes there are; None: ``WORLD_SIZE``, else 1.
        shard: See `torch`.

    Raises:
        ModuleNotFoundError: TensorFlow is not installed.
        PipelineError: A type is not one of TensorFlow's.

    Example:
        >>> import asyncdata as ad
        >>> from asyncdata import feed
        >>> batches = feed.tensorflow(ad.Dataset.range(1000).batch(100))  # doctest: +SKIP
        >>> batches.element_spec  # doctest: +SKIP
        TensorSpec(shape=(None,), dtype=tf.int64, name=None)
    """
    division = Division(rank=rank, world=world, shard=shard, even=even)
    return _module("tensorflow", "tensorflow_dataset").as_tf_dataset(dataset, division, output_signature)


def lightning_callback(batches: TorchFeed) -> LightningCallback:
    """A ``lightning.pytorch.Callback`` that keeps the position of a feed in Lightning's checkpoints.

    The position is after the batches of whole optimizer steps, whatever Lightning has asked for ahead or accumulates,
    and a checkpoint has those of all ranks. Pass the feed itself to ``fit``. From now on the callback alone says what
    was used, and loads the feed's state.

    With ``automatic_optimization = False`` every batch counts as used when its training step is done.

    Args:
        batches: The feed that is trained on.

    Raises:
        ModuleNotFoundError: Lightning is not installed.
        TypeError: It is no feed, but a dataset or a DataLoader, for example.

    Example:
        >>> import asyncdata as ad
        >>> from asyncdata import feed
        >>> batches = feed.torch(ad.Dataset.range(1000).batch(100))  # doctest: +SKIP
        >>> trainer = lightning.Trainer(callbacks=[feed.lightning_callback(batches)])  # doctest: +SKIP
        >>> trainer.fit(module, batches, ckpt_path="last")  # doctest: +SKIP
    """
    made: LightningCallback = _module("lightning", "lightning_position").LightningCallback(batches)
    return made


def transformers_callback(batches: TorchFeed) -> TransformersCallback:
    """A ``transformers.TrainerCallback`` that keeps the position of a feed in the checkpoints of ``Trainer``.

    The position is after the batches of whole optimizer steps, and a checkpoint has those of all ranks, in
    ``trainer_state.json``. Return ``batches.dataloader()`` from ``get_train_dataloader``, set
    ``ignore_data_skip=True``, and put this callback after all others. From now on it alone says what was used, and
    loads the feed's state.

    Args:
        batches: The feed that is trained on.

    Raises:
        ModuleNotFoundError: transformers is not installed.
        TypeError: It is no feed, but a dataset or a DataLoader, for example.

    Example:
        >>> import asyncdata as ad
        >>> from asyncdata import feed
        >>> batches = feed.torch(ad.Dataset.range(1000).batch(100))  # doctest: +SKIP
        >>> class FedTrainer(Trainer):  # doctest: +SKIP
        ...     def get_train_dataloader(self):
        ...         return batches.dataloader()
        >>> trainer = FedTrainer(model, arguments, callbacks=[feed.transformers_callback(batches)])  # doctest: +SKIP
        >>> trainer.train(resume_from_checkpoint=True)  # doctest: +SKIP
    """
    made: TransformersCallback = _module("transformers", "transformers_position").TransformersCallback(batches)
    return made


def orbax_save(batches: HasState) -> PositionSave:
    """The position of a feed as an item of an Orbax checkpoint.

    It is the position at this call, also if Orbax saves in the background. Each process writes a file of its own.

    Args:
        batches: A feed, or an iterator of a dataset.

    Raises:
        ModuleNotFoundError: Orbax is not installed.

    Example:
        >>> import asyncdata as ad
        >>> from asyncdata import feed
        >>> batches = feed.jax(ad.Dataset.range(1000, output_type="int32").batch(100))  # doctest: +SKIP
        >>> manager.save(  # doctest: +SKIP
        ...     step,
        ...     args=ocp.args.Composite(model=ocp.args.StandardSave(model), data=feed.orbax_save(batches)),
        ... )
    """
    made: PositionSave = _module("orbax", "orbax_items").PositionSave(batches.state_dict())
    return made


def orbax_restore(batches: HasState) -> PositionRestore:
    """Restores a position that `orbax_save` has saved, also by another number of processes.

    The processes that saved it have each read a part of an epoch. If there are as many again, each resumes at
    its own position. If not, `asyncdata.state.split` divides what is left of the epoch.

    Args:
        batches: The feed that resumes, or an iterator of a dataset with ``shard(processes, process)``.

    Raises:
        ModuleNotFoundError: Orbax is not installed.
        StateError: During the restore: files are missing, or the pipeline does not allow another number of processes.

    Example:
        >>> import asyncdata as ad
        >>> from asyncdata import feed
        >>> batches = feed.jax(ad.Dataset.range(1000, output_type="int32").batch(100))  # doctest: +SKIP
        >>> manager.restore(  # doctest: +SKIP
        ...     step,
        ...     args=ocp.args.Composite(model=ocp.args.StandardRestore(model), data=feed.orbax_restore(batches)),
        ... )
    """
    made: PositionRestore = _module("orbax", "orbax_items").PositionRestore(batches)
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
        raise ModuleNotFoundError(f"{package} is not installed: pip install 'asyncdata[{package}]'") from error
