"""Sends a plan to the loader process: functions by value, arrays once; or an error that names the culprit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from asyncdata.errors import FunctionTransferError
from asyncdata.options import Options
from asyncdata.plan.flat import flattened, restored
from asyncdata.plan.label import label_of
from asyncdata.plan.node import Node, walk
from asyncdata.runtime.isolate import out_of_band
from asyncdata.runtime.state.document import Start
from asyncdata.storage.backends import BackendSpec, adopt_backends, registered_backends
from asyncdata.workers.child import not_loaded
from asyncdata.workers.transfer import LOADER, dump_program, dumps


@dataclass(frozen=True, slots=True, kw_only=True)
class Cargo:
    """The plan that the loader process is to run.

    Attributes:
        plan: The last node.
        options: In force.
        seed: Stands in for seeds that were not given.
        epoch: Number of the iteration.
        start: The state that the pipeline is brought back to; None: it begins.
        backends: What serves URL schemes, beside asyncdata itself.
        sample_hz: How often per second to look at which line user code is in; 0: never.
        traced: Its number in the profile, if there is a trace; or 0.
    """

    plan: Node
    options: Options
    seed: int
    epoch: int
    start: Start | None = None
    backends: Mapping[str, BackendSpec] = field(default_factory=registered_backends)
    sample_hz: float = 0.0
    traced: int = 0


def load_up(cargo: Cargo) -> tuple[int, int]:
    """Writes the cargo into a nameless file: its descriptor, the caller's to close, and its length.

    Raises:
        FunctionTransferError: Something in it cannot be pickled.
    """
    try:
        steps = flattened(cargo.plan)
        pieces = out_of_band.dump((dataclasses.replace(cargo, plan=steps[-1]), steps), dumps)
    except Exception as error:
        _name_culprit(cargo.plan)
        raise FunctionTransferError(
            f"the pipeline cannot be sent to the loader process ({type(error).__name__}: {error}); "
            "with isolate=True everything in it must be picklable"
        ) from error
    return out_of_band.write_file("asyncdata-plan", pieces), out_of_band.nbytes(pieces)


def _name_culprit(plan: Node) -> None:
    """Raises the error of the function, or other part of a node, that is in the way."""
    for node in walk(plan):
        for value in node.settings.values():
            try:
                dump_program(value, LOADER)
            except FunctionTransferError as error:
                error.stage = label_of(node)
                raise


def unload(fd: int, size: int) -> Cargo:
    """The cargo, in the loader process, where the backends are then registered; its arrays view the file.

    Raises:
        FunctionTransferError: It cannot be unpickled here, mostly because a module cannot be imported.
    """
    cargo: Cargo
    try:
        cargo, steps = out_of_band.load_mapped(fd, size)
    except BaseException as error:
        raise not_loaded("the loader process cannot load the pipeline", error) from error
    adopt_backends(cargo.backends)
    return dataclasses.replace(cargo, plan=restored(steps))
