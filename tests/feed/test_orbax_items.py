"""feed.orbax_save and feed.orbax_restore: real checkpoints of real processes, as many as before or not."""

from __future__ import annotations

import shutil
import socket
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.feed.installed import needed_here
from tests.feed.orbax_rank import COUNT
from tests.feed.rank_processes import answers_of


def ranks(folder: Path, mode: str, world: int) -> list[dict[str, list[int]]]:
    """What each of so many processes was given."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    alone = {"XLA_FLAGS": "--xla_force_host_platform_device_count=1", "JAX_PLATFORMS": "cpu"}
    words = ("tests.feed.orbax_rank", str(folder), mode, str(world))
    return answers_of([((*words, str(rank), coordinator), alone) for rank in range(world)])


Saved: TypeAlias = tuple[Path, list[dict[str, Any]]]


def saved_by(world: int, factory: pytest.TempPathFactory) -> Saved:
    """A checkpoint of so many processes behind two steps, and what they were given before it."""
    needed_here("orbax")
    needed_here("jax")
    folder = factory.mktemp("orbax") / "checkpoints"
    return folder, ranks(folder, "save", world)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """That of two processes."""
    return saved_by(2, tmp_path_factory)


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2, 3])
def test_processes_go_on_where_a_checkpoint_is(world: int, saved: Saved) -> None:
    """Whatever their number, they are given each element once that those before them were not."""
    check_rest(*saved, world)


@pytest.mark.slow
def test_a_single_process_is_joined_by_another(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Its checkpoint can be divided, too."""
    check_rest(*saved_by(1, tmp_path_factory), 2)


def check_rest(folder: Path, before: list[dict[str, Any]], world: int) -> None:
    """So many processes are given each element once that those before them were not."""
    after = ranks(folder, "restore", world)
    for source in ("feed", "iterator"):
        assert [len(rank[source]) for rank in before] == [6] * len(before)
        assert sorted(chain(*(rank[source] for rank in before + after))) == list(range(COUNT))
    # A feed that is alone in its process goes on with that process's position.
    for number, (saved, rest) in enumerate(zip(before, after, strict=False)):
        assert len(saved["alone"]) == 3 * (1 + number)
        assert sorted(saved["alone"] + rest["alone"]) == list(range(COUNT))


@pytest.mark.slow
def test_a_checkpoint_of_which_a_part_is_missing_is_refused(saved: Saved, tmp_path: Path) -> None:
    """With the names of the files that are there."""
    folder = tmp_path / "checkpoints"
    shutil.copytree(saved[0], folder)
    (folder / "2" / "feed" / "process_0-of-2.json").unlink()
    with pytest.raises(AssertionError, match=r"some processes are missing: there are \['process_1-of-2.json'\]"):
        ranks(folder, "restore", 1)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_refused(saved: Saved, tmp_path: Path) -> None:
    """With the name of the file."""
    folder = tmp_path / "checkpoints"
    shutil.copytree(saved[0], folder)
    (folder / "2" / "feed" / "process_0-of-2.json").write_text('{"version": ')
    with pytest.raises(AssertionError, match=r"StateError: the file of a position is damaged .*process_0-of-2.json"):
        ranks(folder, "restore", 1)
