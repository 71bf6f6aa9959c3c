"""Orbax: positions as items of its checkpoints; the only file that imports orbax.

Each process writes a file of its own, as JSON; whoever restores reads those of all, so their number may change.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Protocol

import orbax.checkpoint as ocp

from asyncdata.errors import StateError
from asyncdata.feed.feeding import Feed
from asyncdata.runtime.state.division import split

_FILES = "process_*-of-*.json"


class HasState(Protocol):
    """A feed, an iterator of a dataset, or what else has a JSON-serializable state."""

    def state_dict(self) -> dict[str, Any]:
        """The state."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on there."""


class PositionHandler(ocp.CheckpointHandler):  # type: ignore[misc]  # orbax is not there where types are checked
    """Writes and reads positions."""

    def save(self, directory: Any, args: Any) -> None:
        """Writes this process's file."""
        name = f"process_{ocp.multihost.process_index()}-of-{ocp.multihost.process_count()}.json"
        (directory / name).write_text(json.dumps(args.state, allow_nan=False))

    def restore(self, directory: Any, args: Any) -> HasState:
        """Loads this process's part of the position."""
        found = {path.name: path for path in directory.glob(_FILES)}
        before = {name.partition("-of-")[2].removesuffix(".json") for name in found}
        if not found or before != {str(len(found))}:
            missing = f"the positions of some processes are missing: there are {sorted(found)}"
            raise StateError(missing, url=str(directory))
        states = [_read(found[f"process_{index}-of-{len(found)}.json"]) for index in range(len(found))]
        item: HasState = args.item
        count, index = ocp.multihost.process_count(), ocp.multihost.process_index()
        if isinstance(item, Feed):
            # Its own last: of several processes with the same rank, each goes on with what it has saved.
            item._load([*states, *states[index : index + 1]])  # noqa: SLF001 -- of all ranks
        elif len(states) == count:
            item.load_state_dict(states[index])
        else:
            item.load_state_dict(split(states, count)[index])
        return item

    def metadata(self, directory: Any) -> None:
        """A position is described by `asyncdata.state.describe`."""


def _read(path: Any) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise StateError("the file of a position is damaged", url=str(path)) from error


@ocp.args.register_with_handler(PositionHandler, for_save=True)
@dataclasses.dataclass
class PositionSave(ocp.args.CheckpointArgs):  # type: ignore[misc]  # as above
    """What `asyncdata.feed.orbax_save` returns.

    Attributes:
        state: Taken when this was made, because Orbax may save later.
    """

    state: dict[str, Any]


@ocp.args.register_with_handler(PositionHandler, for_restore=True)
@dataclasses.dataclass
class PositionRestore(ocp.args.CheckpointArgs):  # type: ignore[misc]  # as above
    """What `asyncdata.feed.orbax_restore` returns.

    Attributes:
        item: Goes on where the checkpoint is.
    """

    item: HasState
