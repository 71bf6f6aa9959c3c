"""One loader that saves its state, or goes on from it: ``python saved_states.py JSON``, by whoever has the loader.

All read the same records of one size from local files, in batches, through a shuffle. asyncdata and Grain shuffle in a
window of so many records, StatefulDataLoader and MosaicML Streaming by an order of all records or of blocks of so many.
``step`` says what is measured: ``take`` goes to a position and takes states there, ``first`` begins, at the beginning
or at the state that was taken, and reads up to the end of the epoch.
"""

from __future__ import annotations

import importlib.machinery
import itertools
import json
import os
import pickle
import statistics
import sys
import time
import types
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

_FRAME = 16
_ASKED = 20

Open = Callable[[dict[str, Any], Any], tuple[Iterator[Any], Callable[[], Any]]]
"""``open(work, state)``: batches from the state on, and what takes a state."""


class Records:
    """The records of the files by number, for loaders that ask for each."""

    def __init__(self, work: dict[str, Any]) -> None:
        self._files = [os.open(path, os.O_RDONLY) for path in sorted(Path(work["folder"], "tfrecord").iterdir())]
        self._count: int = work["records"]
        self._nbytes: int = work["record_bytes"]

    def __len__(self) -> int:
        return len(self._files) * self._count

    def __getitem__(self, number: int) -> bytes:
        file, row = divmod(int(number), self._count)
        return os.pread(self._files[file], self._nbytes, row * (self._nbytes + _FRAME) + 12)


def open_asyncdata(work: dict[str, Any], state: Any) -> tuple[Iterator[Any], Callable[[], Any]]:
    """This library; the checksums of all records are verified."""
    ad = import_module("asyncdata")
    files = ad.Dataset.list_files(f"{work['folder']}/tfrecord/*", shuffle=True, seed=1)
    dataset = files.interleave(ad.TFRecordDataset, 16, num_parallel_calls=16).shuffle(work["buffer"], seed=1)
    it = dataset.batch(work["batch"]).with_options(ad.Options(num_workers=0)).iterator(state=state)
    return it, it.state_dict


def open_grain(work: dict[str, Any], state: Any) -> tuple[Iterator[Any], Callable[[], Any]]:
    """Google's Grain."""
    grain = import_module("grain")
    dataset = grain.MapDataset.source(Records(work)).to_iter_dataset()
    dataset = grain.experimental.WindowShuffleIterDataset(dataset, window_size=work["buffer"], seed=1)
    it = iter(dataset.batch(work["batch"], batch_fn=list))
    if state is not None:
        it.set_state(state)
    return it, it.get_state


def open_torchdata(work: dict[str, Any], state: Any) -> tuple[Iterator[Any], Callable[[], Any]]:
    """PyTorch's StatefulDataLoader, in this process, where it is fastest for records that only have to be read."""
    import_module("torch").manual_seed(1)
    loader = import_module("torchdata.stateful_dataloader").StatefulDataLoader(
        Records(work), batch_size=work["batch"], shuffle=True, collate_fn=list
    )
    if state is not None:
        loader.load_state_dict(state)
    return iter(loader), loader.state_dict


def open_streaming(work: dict[str, Any], state: Any) -> tuple[Iterator[Any], Callable[[], Any]]:
    """MosaicML Streaming, over its own format, which is written before the first measurement."""
    # It imports torchvision, for datasets that are not used here, and the one for another build of torch fails.
    for name in ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"):
        module: Any = types.ModuleType(name)
        sys.modules[name] = module
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.VisionDataset, module.to_tensor = object, None
    streaming = import_module("streaming")
    import_module("streaming.base.util").clean_stale_shared_memory()
    folder = Path(work["folder"], "mds")
    if not folder.exists():
        records = Records(work)
        with streaming.MDSWriter(out=str(folder), columns={"x": "bytes"}, size_limit=4 << 20) as writer:
            for number in range(len(records)):
                writer.write({"x": records[number]})
    dataset = streaming.StreamingDataset(
        local=str(folder), shuffle=True, shuffle_seed=1, shuffle_block_size=work["buffer"], batch_size=work["batch"]
    )
    loader = streaming.StreamingDataLoader(dataset, batch_size=work["batch"], collate_fn=_counted)
    if state is not None:
        loader.load_state_dict(state)
    return iter(loader), loader.state_dict


def _counted(samples: list[Any]) -> Any:
    """A batch in which the loader finds the number of its samples."""
    return {"sizes": import_module("torch").tensor([len(sample["x"]) for sample in samples]), "x": samples}


LOADERS: dict[str, Open] = {
    "asyncdata": open_asyncdata,
    "Grain": open_grain,
    "StatefulDataLoader": open_torchdata,
    "MosaicML Streaming": open_streaming,
}


def _read_bytes() -> int:
    found: dict[str, str] = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(found["rchar"])


def take(work: dict[str, Any], path: Path) -> dict[str, float]:
    """Seconds and bytes of a state at a position; writes it."""
    batches, state_of = LOADERS[work["loader"]](work, None)
    asked: list[float] = []
    state = None
    for number, _ in enumerate(itertools.islice(batches, work["position"]), 1):
        if number > work["position"] - _ASKED:
            began = time.perf_counter()
            state = state_of()
            asked.append(time.perf_counter() - began)
    path.write_bytes(pickle.dumps(state))
    try:
        size = len(json.dumps(state))
    except TypeError:
        size = len(pickle.dumps(state))
    return {"state_s": statistics.median(asked), "state_bytes": size}


def first(work: dict[str, Any], path: Path) -> dict[str, float]:
    """Seconds to the first batch, batches up to the end of the epoch, and bytes that were read for both."""
    state = pickle.loads(path.read_bytes()) if work["resumes"] else None  # noqa: S301 -- written by `take`
    # What is imported at the first batch is no cost of a state.
    warm, _ = LOADERS[work["loader"]](work, None)
    next(warm)
    getattr(warm, "close", int)()
    del warm
    before, began = _read_bytes(), time.perf_counter()
    batches, _ = LOADERS[work["loader"]](work, state)
    next(batches)
    first_s, first_bytes = time.perf_counter() - began, _read_bytes() - before
    count = 1 + sum(1 for _ in batches)
    return {"first_s": first_s, "first_bytes": first_bytes, "batches": count, "read_bytes": _read_bytes() - before}


def main() -> None:
    """Measures what the argument says, and prints it."""
    work = json.loads(sys.argv[1])
    path = Path(work["folder"], f"{work['loader']}.state")
    print(json.dumps((take if work["step"] == "take" else first)(work, path)), flush=True)
    os._exit(0)  # some of them wait for threads that nobody ends


if __name__ == "__main__":
    main()
