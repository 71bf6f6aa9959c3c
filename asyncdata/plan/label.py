"""How steps of a plan are written in errors, statistics and reprs: ``map(decode)``, ``shuffle(1000)``. Pure text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from asyncdata.options import AUTOTUNE
from asyncdata.plan.node import Node
from asyncdata.redaction import redact, redact_url

_TELLING: Final = ("function", "predicate", "functions", "size", "buffer_size", "count", "url")
"""Fields that tell a step from its like, the most telling first."""
_SHOWN: Final = (*_TELLING, "patterns", "num_shards", "stop")
_LONGEST: Final = 80
_MOST_STEPS: Final = 24
_MOST_BRANCHES: Final = 3


def function_name(function: Callable[..., Any]) -> str:
    """A function's name for labels: qualified, or its class's name."""
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return str(name).replace("<locals>.", "")


def label_of(node: Node, fields: tuple[str, ...] = _TELLING) -> str:
    """The node's name with the first of these fields that it has: ``map(decode)``, ``shuffle(1000)``."""
    for field in fields:
        value = getattr(node, field, None)
        if value is not None:
            is_found = field == "buffer_size" and value == AUTOTUNE
            text = "AUTOTUNE" if is_found else _shown(value)
            # A function of the library's own may have the name of the step.
            return redact(node.written if text == node.written != node.label else f"{node.written}({text})")
    return node.written


def _shown(value: Any) -> str:
    if callable(value):
        return function_name(value)
    if isinstance(value, tuple):
        text = ", ".join(map(_shown, value[:_MOST_BRANCHES]))
        return text if len(value) <= _MOST_BRANCHES else f"{text}, … {len(value)} in all"
    return redact_url(str(value))


def steps_of(node: Node) -> str:
    """All steps from the sources on, as one line: ``list_files(*.rec) → interleave(TFRecordDataset) → batch(64)``.

    Branches are in brackets; a long plan loses its middle. Does no I/O.
    """
    texts = _texts(_chain(node), _with_branches)
    if len(texts) > _MOST_STEPS:
        half = _MOST_STEPS // 2
        texts = [*texts[:half], f"… {len(texts) - 2 * half} steps …", *texts[-half:]]
    return " → ".join(texts)


def _chain(node: Node) -> list[Node]:
    """The steps that lead to a node from a source, or from a step with several inputs."""
    steps = [node]
    while len(steps[-1].inputs) == 1:
        steps += steps[-1].inputs
    return steps[::-1]


def _texts(steps: list[Node], text_of: Callable[[Node], str]) -> list[str]:
    """Each step as text; a reader of a list of files, which are two steps, as it was written."""
    texts: list[str] = []
    for before, step in zip([None, *steps], steps, strict=False):
        reader = getattr(step, "reader", None)
        names = getattr(before, "items", None)
        if reader is not None and names is not None:
            texts[-1] = _cut(redact(f"{reader.written}({_shown(names)})"))
        else:
            texts.append(_cut(text_of(step)))
    return texts


def _shown_step(node: Node) -> str:
    return label_of(node, _SHOWN)


def _with_branches(node: Node) -> str:
    if len(node.inputs) < 2:
        return _shown_step(node)
    # One level of branches is written out; a branch that has branches names its last step only.
    branches = [_cut(" → ".join(_texts(_chain(child), _shown_step))) for child in node.inputs[:_MOST_BRANCHES]]
    more = [f"… {len(node.inputs)} in all"] if len(node.inputs) > _MOST_BRANCHES else []
    return f"{node.written}[{', '.join([*branches, *more])}]"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
