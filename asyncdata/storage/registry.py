"""Which backend serves a URL. Pure: nothing is imported or opened here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from asyncdata.errors import UnsupportedURLError
from asyncdata.options import AUTOTUNE, SCHEME_ALIASES, Environment, Options
from asyncdata.storage.backends import FSSPEC, OBSTORE, backend_of, check_options
from asyncdata.storage.cloud_options import SCHEMES
from asyncdata.storage.proxies import Proxies
from asyncdata.storage.reader import RangeReader, ReaderSpec
from asyncdata.storage.urls import scheme_of

_LARGEST_WINDOW: Final = 256


def spec_for(url: str, options: Options, environment: Environment) -> ReaderSpec:
    """The recipe of the reader for a URL; equal schemes give equal recipes.

    Args:
        url: A URL or a local path.
        options: ``storage`` (by scheme), ``timeouts``, ``max_requests_in_flight`` and ``hedge`` are used.
        environment: ``STORAGE_EMULATOR_HOST``, which an explicit ``endpoint_url`` overrides.

    Raises:
        ValueError: The scheme does not take one of its options.
        UnsupportedURLError: No backend serves the URL.
    """
    if not url:
        raise UnsupportedURLError("an empty URL")
    written = scheme_of(url)
    scheme = SCHEME_ALIASES.get(written, written)
    chosen = options.storage.get(scheme, {})
    if chosen:
        check_options(scheme, chosen)
    if scheme == "gs":
        chosen = _with_emulator(chosen, environment.storage_emulator_host)
    backend = _opener_of(url, scheme, chosen.get("backend"))
    if backend != OBSTORE:
        chosen = {name: value for name, value in chosen.items() if name != "backend"}
    return ReaderSpec(
        scheme=scheme,
        backend=backend,
        options=dict(chosen),
        timeouts=options.timeouts,
        retry=options.retry,
        proxies=Proxies(
            http=environment.http_proxy, https=environment.https_proxy, exceptions=environment.no_proxy or ""
        ),
        # Second attempts run beside the window: they are needed most when every read in it is silent.
        max_connections=(
            _LARGEST_WINDOW if options.max_requests_in_flight == AUTOTUNE else options.max_requests_in_flight
        )
        + (options.hedge.max_at_once if options.hedge.enabled else 0),
    )


def _opener_of(url: str, scheme: str, choice: object) -> str | Callable[[ReaderSpec], RangeReader]:
    """What opens readers of a scheme, as the option ``backend`` chooses where there is a choice."""
    if choice is None:
        served = backend_of(scheme)
        return FSSPEC if served is None else served.open_reader
    if choice == "fsspec":
        return FSSPEC
    if choice == "obstore" and scheme in SCHEMES:
        return OBSTORE
    raise UnsupportedURLError(
        f"the option 'backend' of {scheme} is {choice!r}; there are 'fsspec'"
        + (" and 'obstore'" if scheme in SCHEMES else ""),
        url=url,
    )


def _with_emulator(options: Mapping[str, Any], host: str | None) -> Mapping[str, Any]:
    """An emulator is spoken to without credentials unless they are named."""
    if host is None or options.get("endpoint_url"):
        return options
    endpoint = host if "://" in host else f"http://{host}"
    return {"token": "anon", **options, "endpoint_url": endpoint}
