"""Which backend serves a URL. Pure: nothing is imported or opened here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from asyncdata.errors import UnsupportedURLError
from asyncdata.options import Environment, Options
from asyncdata.storage.reader import ReaderSpec
from asyncdata.storage.urls import scheme_of

_ALIASES: Final = {"gcs": "gs", "local": "file"}
_BACKENDS: Final = {
    "gs": "asyncdata.storage.gcs.reader",
    "file": "asyncdata.storage.local.reader",
    "memory": "asyncdata.storage.memory",
    "http": "asyncdata.storage.http",
    "https": "asyncdata.storage.http",
    "hdfs": "asyncdata.storage.hdfs.reader",
    "webhdfs": "asyncdata.storage.webhdfs.reader",
    "swebhdfs": "asyncdata.storage.webhdfs.reader",
}
_ANY_FSSPEC: Final = "asyncdata.storage.fsspec"


def spec_for(url: str, options: Options, environment: Environment) -> ReaderSpec:
    """The recipe of the reader for a URL; equal schemes give equal recipes.

    Args:
        url: A URL or a local path.
        options: ``storage`` (by scheme), ``timeouts`` and ``max_requests_in_flight`` are used.
        environment: ``STORAGE_EMULATOR_HOST``, which an explicit ``endpoint_url`` overrides.
    """
    if not url:
        raise UnsupportedURLError("an empty URL")
    written = scheme_of(url)
    scheme = _ALIASES.get(written, written)
    chosen: Mapping[str, Any] = options.storage.get(scheme) or options.storage.get(written) or {}
    if scheme == "gs":
        chosen = _with_emulator(chosen, environment.storage_emulator_host)
    return ReaderSpec(
        scheme=scheme,
        backend=_BACKENDS.get(scheme, _ANY_FSSPEC),
        options=dict(chosen),
        timeouts=options.timeouts,
        max_connections=options.max_requests_in_flight,
    )


def _with_emulator(options: Mapping[str, Any], host: str | None) -> Mapping[str, Any]:
    """An emulator is spoken to without credentials unless they are named."""
    if host is None or options.get("endpoint_url"):
        return options
    endpoint = host if "://" in host else f"http://{host}"
    return {"token": "anon", **options, "endpoint_url": endpoint}
