"""Partial responses: the ``fields`` parameter, such as ``items(name,size),prefixes,nextPageToken``."""

from __future__ import annotations

import re
from typing import Any

from fake_gcs.errors import invalid

_WORD = re.compile(r"[A-Za-z0-9_*-]+")
_MAX_DEPTH = 10
_MAX_LENGTH = 2000

_Tree = dict[str, "_Tree"]


def select_fields(value: dict[str, Any], fields: str) -> dict[str, Any]:
    """The part of a JSON object that ``fields`` names; an empty tree selects everything below.

    Raises:
        GCSError: 400 for a malformed selector.
    """
    if len(fields) > _MAX_LENGTH:
        raise invalid("Invalid field selection: too long")
    tree, rest = _parse(fields, 0)
    if rest:
        raise invalid(f"Invalid field selection {fields[:100]}")
    selected = _select(value, tree)
    return selected if isinstance(selected, dict) else {}


def _parse(text: str, depth: int) -> tuple[_Tree, str]:
    if depth > _MAX_DEPTH:
        raise invalid("Invalid field selection: too deep")
    tree: _Tree = {}
    while True:
        place = tree
        while True:
            match = _WORD.match(text)
            if match is None:
                raise invalid(f"Invalid field selection {text[:100]}")
            place = place.setdefault(match[0], {})
            text = text[match.end() :]
            if not text.startswith("/"):
                break
            text = text[1:]
        if text.startswith("("):
            inner, text = _parse(text[1:], depth + 1)
            if not text.startswith(")"):
                raise invalid("Invalid field selection: unbalanced parentheses")
            text = text[1:]
            place.update(inner)
        if not text.startswith(","):
            return tree, text
        text = text[1:]


def _select(value: Any, tree: _Tree) -> Any:
    if not tree or "*" in tree:
        below = tree.get("*")
        if below and isinstance(value, dict):
            return {name: _select(item, below) for name, item in value.items()}
        return value
    if isinstance(value, list):
        return [_select(item, tree) for item in value]
    if isinstance(value, dict):
        return {name: _select(value[name], tree[name]) for name in value if name in tree}
    return value
