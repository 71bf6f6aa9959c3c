"""Which storage options each URL scheme takes: wrong ones are refused before anything is opened.

Values are never part of a message: some are secrets.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final

from asyncdata.arguments import suggestion
from asyncdata.options import SCHEME_ALIASES

_TLS: Final = frozenset({"verify_tls", "ca_file"})
_HTTP: Final = _TLS | {"headers", "proxy"}
_CLOUD: Final = _TLS | {"backend", "endpoint_url", "proxy"}
_HDFS: Final = frozenset({"config", "config_dir", "kerberos_principal", "kerberos_keytab", "kerberos_cache"})
_WEBHDFS: Final = _TLS | {"user", "do_as", "delegation_token_file"}
KNOWN_OPTIONS: Final[Mapping[str, frozenset[str]]] = {
    "file": frozenset(),
    "memory": frozenset(),
    "gs": _CLOUD | {"token", "user_project", "project"},
    "s3": _CLOUD | {"config", "region", "key", "secret", "token", "anon", "requester_pays"},
    "az": _CLOUD
    | {"config", "account_name", "account_key", "sas_token", "tenant_id", "client_id", "client_secret", "anon"},
    "http": _HTTP,
    "https": _HTTP,
    "hdfs": _HDFS,
    "webhdfs": _WEBHDFS,
    "swebhdfs": _WEBHDFS,
}
"""By the usual name of each scheme; what no scheme here serves is fsspec's, with fsspec's options."""

FSSPEC: Final = "asyncdata.storage.fsspec"
OBSTORE: Final = "asyncdata.storage.obstore"


def check_storage(storage: Mapping[str, Mapping[str, Any]]) -> None:
    """Looks at the names of schemes and options in ``Options.storage``.

    Raises:
        ValueError: One is unknown; the message names the nearest one that is known.
    """
    for scheme, options in storage.items():
        check_options(scheme, options)


def check_options(scheme: str, options: Mapping[str, Any]) -> None:
    """Likewise, of one scheme."""
    known = KNOWN_OPTIONS.get(scheme)
    if known is None:
        served = importlib.import_module(FSSPEC).protocols()
        if scheme not in served:
            nearest = suggestion(scheme, [*KNOWN_OPTIONS, *SCHEME_ALIASES, *served])
            raise ValueError(f"storage has options for {scheme!r}, but there is no such URL scheme{nearest}")
        return
    backend = options.get("backend")
    if scheme == "gs" and backend == "obstore":
        known = known | {"config"}
    unknown = [key for key in options if key != "backend" and key not in known]
    if not unknown or _is_fsspecs(scheme, backend):
        return
    hint = ""
    if scheme in {"s3", "az"} or backend == "obstore":
        hint = "; obstore's own keys go into 'config', and 'backend': 'fsspec' passes all options to fsspec"
    raise ValueError(
        f"storage[{scheme!r}] has the unknown option {unknown[0]!r}{suggestion(str(unknown[0]), known)}; "
        f"{scheme}:// takes {', '.join(sorted(known)) or 'none'}{hint}"
    )


def _is_fsspecs(scheme: str, backend: object) -> bool:
    """Whether fsspec's filesystem serves the scheme, so that the options are its own."""
    if backend is None and scheme in {"s3", "az"}:
        return not importlib.import_module(OBSTORE).is_installed()
    return backend == "fsspec"
