"""A process that goes on where another one was: it builds a pipeline from its description and loads a state as text."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import asyncdata as ad
from asyncdata.runtime.stages.group import collecting
from asyncdata.runtime.stages.order import shuffle
from asyncdata.runtime.stages.rows import scan
from asyncdata.runtime.stages.sources import framed
from asyncdata.runtime.state import marker
from tests.integration.described_pipelines import dataset_of, text


def mark_often(patch: Callable[[Any, str, Any], object]) -> None:
    """Has steps write a mark at every fourth row, and files every 512 bytes, so that short runs go on from marks.

    Args:
        patch: Sets an attribute of a module or class.
    """
    for module in (collecting, marker, scan, shuffle):
        patch(module, "MARK_EVERY", 4)
    patch(framed, "_MARK_BYTES", 512)
    patch(marker.Marker.__init__, "__defaults__", (4,))


def taken(it: ad.PipelineIterator, note: Callable[[int], object]) -> tuple[list[str], str | None]:
    """All elements, and the error that ended it.

    Args:
        it: An iterator.
        note: Called in front of each element and behind the last one, with the number of elements before.
    """
    elements: list[str] = []
    note(0)
    try:
        for element in it:
            elements.append(text(element))
            note(len(elements))
    except Exception as error:  # noqa: BLE001 -- compared
        return elements, f"{type(error).__name__}: {error}"
    return elements, None


def rest(case: dict[str, Any], places: list[str], state: str, again: int) -> list[Any]:
    """What is left behind a state, and behind one that is taken meanwhile.

    Args:
        case: The description.
        places: The folder where it keeps elements, and the server of objects that change.
        state: The state.
        again: After how many elements the other one is taken.

    Returns:
        Twice the elements and the error that ended them, or refused the state.
    """
    answers: list[Any] = []
    states = [state]

    def note(count: int) -> None:
        if count == again:
            states.append(json.dumps(it.state_dict()))

    for _ in range(2):
        try:
            with dataset_of(case, *places).iterator(state=json.loads(states[-1])) as it:
                assert it.position == json.loads(states[-1])["position"]
                answers += taken(it, note)
        except Exception as refused:  # noqa: BLE001 -- compared
            answers += [], f"{type(refused).__name__}: {refused}"
    return answers


class FreshProcess:
    """An interpreter that was spawned, and lives until it is closed."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", f"from {__name__} import serve; serve()"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def rest(self, case: dict[str, Any], places: list[str], state: str, again: int) -> list[Any]:
        """`rest`, there."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([case, places, state, again]) + "\n")
        self._process.stdin.flush()
        answers: list[Any] = json.loads(self._process.stdout.readline())
        return answers

    def close(self) -> None:
        """Ends it."""
        self._process.communicate()


def serve() -> None:
    """Answers, line by line; functions run in threads, which changes no element."""
    with ad.Runtime(ad.Options(num_workers=0)):
        mark_often(setattr)
        for line in sys.stdin:
            print(json.dumps(rest(*json.loads(line))), flush=True)  # noqa: T201 -- the answer
