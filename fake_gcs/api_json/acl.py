"""Access control lists as values: kept and shown, but nobody is refused by them.

A list lies in the settings of its bucket or object, ``[{"entity": "allUsers", "role": "READER"}, ...]``. Where there is
none, the project's own people have access, as in GCS.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fake_gcs.errors import invalid, missing

Entries = list[dict[str, str]]
"""One list."""

_ENTITY = re.compile(
    r"all(?:Authenticated)?Users\Z|(?:user|group|domain|project-(?:owners|editors|viewers))-\S{1,500}\Z",
)
_ROLES = frozenset({"OWNER", "WRITER", "READER"})
_OWNER = {"project-owners-0": "OWNER"}
_PREDEFINED = {
    "authenticatedRead": _OWNER | {"allAuthenticatedUsers": "READER"},
    "bucketOwnerFullControl": _OWNER,
    "bucketOwnerRead": _OWNER,
    "private": _OWNER,
    "projectPrivate": _OWNER | {"project-editors-0": "OWNER", "project-viewers-0": "READER"},
    "publicRead": _OWNER | {"allUsers": "READER"},
    "publicReadWrite": _OWNER | {"allUsers": "WRITER"},
}


def entry_from(value: Any) -> dict[str, str]:
    """An entry as it is kept.

    Raises:
        GCSError: 400 when its entity or role is missing, or is none.
    """
    if not isinstance(value, dict):
        raise invalid("An entry of an access control list must be a JSON object.")
    entity, role = str(value.get("entity") or ""), str(value.get("role") or "")
    if not entity or not role:
        raise missing("role" if entity else "entity")
    if not _ENTITY.match(entity) or role not in _ROLES:
        raise invalid(f"Invalid entry of an access control list: {entity[:100]!r}, {role[:40]!r}")
    return {"entity": entity, "role": role}


def entries_of(settings: Mapping[str, Any], field: str) -> Entries:
    """The list in a field of the settings, or the one that GCS gives where none was set."""
    kept = settings.get(field)
    return _listed(_PREDEFINED["projectPrivate"]) if kept is None else kept


def with_list(settings: dict[str, Any], query: Mapping[str, str], field: str, parameter: str) -> dict[str, Any]:
    """The settings with a list that can be kept: the predefined one that the query names, or the client's own.

    Raises:
        GCSError: 400 for an unknown name and for a list that is none.
    """
    if name := query.get(parameter):
        if name not in _PREDEFINED:
            raise invalid(f"Invalid value for {parameter}: {name[:40]}")
        return {**settings, field: _listed(_PREDEFINED[name])}
    given = settings.get(field)
    if given is None:
        return settings
    if not isinstance(given, list):
        raise invalid(f"{field} must be a list of entries")
    entries = map(entry_from, given)
    return {**settings, field: _listed({entry["entity"]: entry["role"] for entry in entries})}


def _listed(roles: Mapping[str, str]) -> Entries:
    return [{"entity": entity, "role": role} for entity, role in roles.items()]
