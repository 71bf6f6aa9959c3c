"""The backend of each URL scheme and the storage options that it accepts: one table, which users may extend.

Wrong options raise an error before anything is opened. Error messages never contain values, because some are secrets.
"""

from __future__ import annotations

import difflib
import importlib
import re
import resource
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

from asyncdata import arguments
from asyncdata.errors import UnsupportedURLError
from asyncdata.options import AUTOTUNE, SCHEME_ALIASES, Environment, Options
from asyncdata.storage.cloud_options import SCHEMES
from asyncdata.storage.proxies import Proxies
from asyncdata.storage.reader import RangeReader, ReaderSpec
from asyncdata.storage.urls import scheme_of

FSSPEC: Final = "asyncdata.storage.fsspec"
OBSTORE: Final = "asyncdata.storage.obstore"
_LARGEST_WINDOW: Final = 256
_PART_OF_LIMIT: Final = 2


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """The backend of a URL scheme.

    Example:
        >>> import asyncdata as ad
        >>> ad.BackendSpec("my_company.blobs", options={"endpoint", "token"}).open_reader
        'my_company.blobs'

    Attributes:
        open_reader: Makes a `RangeReader` from a `ReaderSpec`; called on the event loop that will use it. It may also
            be the name of a module with a function of this name, which is imported when the first URL is read.
        options: Keys that ``Options(storage={scheme: {...}})`` may have; the reader finds them in ``spec.options``.
    """

    open_reader: str | Callable[[ReaderSpec], RangeReader]
    options: Iterable[str] = frozenset()

    def __post_init__(self) -> None:
        if not isinstance(self.open_reader, str):
            arguments.function("open_reader", self.open_reader)
        options = list(self.options) if isinstance(self.options, AbstractSet) else self.options
        object.__setattr__(self, "options", frozenset(arguments.texts("options", options)))


_TLS: Final = frozenset({"verify_tls", "ca_file"})
_HTTP: Final = _TLS | {"headers", "proxy"}
_CLOUD: Final = _TLS | {"backend", "endpoint_url", "proxy"}
_AZURE: Final = frozenset({"account_name", "account_key", "sas_token", "tenant_id", "client_id", "client_secret"})
_HDFS: Final = frozenset({"config", "config_dir", "kerberos_principal", "kerberos_keytab", "kerberos_cache"})
_WEBHDFS: Final = _TLS | {"user", "do_as", "delegation_token_file"}
BUILT_IN: Final[Mapping[str, BackendSpec]] = {
    "file": BackendSpec("asyncdata.storage.local.reader"),
    "memory": BackendSpec("asyncdata.storage.memory"),
    "gs": BackendSpec("asyncdata.storage.gcs.reader", _CLOUD | {"token", "user_project", "project"}),
    "s3": BackendSpec(OBSTORE, _CLOUD | {"config", "region", "key", "secret", "token", "anon", "requester_pays"}),
    "az": BackendSpec(OBSTORE, _CLOUD | _AZURE | {"config", "anon"}),
    "http": BackendSpec("asyncdata.storage.http", _HTTP),
    "https": BackendSpec("asyncdata.storage.http", _HTTP),
    "hdfs": BackendSpec("asyncdata.storage.hdfs.reader", _HDFS),
    "webhdfs": BackendSpec("asyncdata.storage.webhdfs.reader", _WEBHDFS),
    "swebhdfs": BackendSpec("asyncdata.storage.webhdfs.reader", _WEBHDFS),
}
"""Backends by the usual name of each scheme. fsspec serves all other schemes, with fsspec's options."""

_REGISTERED: dict[str, BackendSpec] = {}
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*")
_WEB: Final = re.compile("(?i)https?://.")


@arguments.suggests
def register_backend(scheme: str, spec: BackendSpec) -> None:
    """Lets asyncdata read URLs of a new scheme, in this process and in the loader processes that it starts.

    Any thread may call it. Registering the same function or module again replaces its entry; open readers stay.

    Args:
        scheme: The scheme in lower case, such as ``"blobs"`` for ``blobs://shelf/name``.
        spec: How to open readers, and which options they accept.

    Raises:
        ValueError: asyncdata serves the scheme itself, or something else is registered for it.

    Example:
        >>> import asyncdata as ad
        >>> ad.register_backend("blobs", ad.BackendSpec("my_company.blobs", options={"endpoint", "token"}))
        >>> options = ad.Options(storage={"blobs": {"endpoint": "https://blobs.example"}})
        >>> ds = ad.TFRecordDataset("blobs://shelf/train.tfrecord").with_options(options)
    """
    arguments.instance("scheme", scheme, str, "a str")
    arguments.instance("spec", spec, BackendSpec, "a BackendSpec")
    if not _SCHEME.fullmatch(scheme):
        raise ValueError(
            f"scheme must be lower-case letters, digits, '+', '.' and '-', such as 'gs', not {arguments.shown(scheme)}"
        )
    if scheme in BUILT_IN or scheme in SCHEME_ALIASES:
        raise ValueError(f"asyncdata serves {scheme}:// itself; register another scheme")
    known = _name_of(_REGISTERED.setdefault(scheme, spec))
    if known != _name_of(spec):
        raise ValueError(f"{known} already serves {scheme}://")
    _REGISTERED[scheme] = spec


def _name_of(spec: BackendSpec) -> str:
    opener = spec.open_reader
    kind = opener if hasattr(opener, "__qualname__") else type(opener)
    return opener if isinstance(opener, str) else f"{kind.__module__}.{kind.__qualname__}"


def registered_backends() -> dict[str, BackendSpec]:
    """Returns the registered backends, for another process."""
    return dict(_REGISTERED)


def adopt_backends(backends: Mapping[str, BackendSpec]) -> None:
    """Registers the backends that another process has registered."""
    _REGISTERED.update(backends)


def backend_of(scheme: str) -> BackendSpec | None:
    """Returns the backend of a scheme; None if fsspec serves it."""
    return BUILT_IN.get(scheme) or _REGISTERED.get(scheme)


def nearest_scheme(scheme: str) -> str:
    """Returns ``; did you mean 'gs'?`` if a known scheme is similar to one that nobody knows; else an empty text."""
    # Of the dozens of short names that fsspec knows, one is a little like anything.
    alike = difflib.get_close_matches(scheme, importlib.import_module(FSSPEC).protocols(), cutoff=_NEARLY)
    return arguments.suggestion(scheme, [*BUILT_IN, *registered_backends(), *SCHEME_ALIASES, *alike])


def check_storage(storage: Mapping[str, Mapping[str, Any]]) -> None:
    """Checks the names of schemes and options in ``Options.storage``.

    Raises:
        ValueError: One is unknown; the message names the nearest known one.
    """
    for scheme, options in storage.items():
        check_options(scheme, options)


def check_options(scheme: str, options: Mapping[str, Any]) -> None:
    """Checks the options of one scheme."""
    served = backend_of(scheme)
    if served is None:
        if scheme not in importlib.import_module(FSSPEC).protocols():
            raise ValueError(
                f"storage has options for {arguments.shown(scheme)}, but there is no such URL scheme"
                f"{nearest_scheme(scheme)}"
            )
        _check_fsspecs(scheme, options)
        return
    backend, known = options.get("backend"), frozenset(served.options)
    endpoint = options.get("endpoint_url") if "endpoint_url" in known else None
    if endpoint and not _WEB.match(str(endpoint)):
        raise ValueError(
            f"endpoint_url in storage[{scheme!r}] must be a URL that begins with http:// or https://, such as "
            "'http://127.0.0.1:4443'"
        )
    if scheme == "gs" and backend == "obstore":
        known = known | {"config"}
    unknown = [key for key in options if key != "backend" and key not in known]
    if not unknown:
        return
    if _is_fsspecs(scheme, backend):
        _check_fsspecs(scheme, unknown)
        return
    hint = ""
    if scheme in {"s3", "az"} or backend == "obstore":
        hint = "; obstore's own keys go into 'config', and 'backend': 'fsspec' passes all options to fsspec"
    raise ValueError(
        f"storage[{scheme!r}] has the unknown option {arguments.shown(unknown[0])}"
        f"{arguments.suggestion(str(unknown[0]), known)}; {scheme}:// takes {', '.join(sorted(known)) or 'none'}{hint}"
    )


def _check_fsspecs(scheme: str, options: Iterable[str]) -> None:
    """Refuses what is nearly the name of an option; a filesystem may pass on names that it does not know."""
    known = importlib.import_module(FSSPEC).option_names(scheme)
    for key in map(str, options):
        nearest = difflib.get_close_matches(key, known, n=1, cutoff=_NEARLY)
        if nearest and key not in known:
            raise ValueError(
                f"storage[{scheme!r}] has the unknown option {arguments.shown(key)}; did you mean {nearest[0]!r}?"
            )


_NEARLY: Final = 0.8
"""Of the letters of a name are right where it is taken for another one."""


def _is_fsspecs(scheme: str, backend: object) -> bool:
    """Returns whether fsspec's filesystem serves the scheme, so that the options are fsspec's."""
    if backend is None and scheme in {"s3", "az"}:
        return not importlib.import_module(OBSTORE).is_installed()
    return backend == "fsspec"


def spec_for(url: str, options: Options, environment: Environment) -> ReaderSpec:
    """Returns the specification of the reader for a URL; equal schemes give equal specifications.

    Args:
        url: A URL or a local path.
        options: ``storage`` (by scheme), ``timeouts``, ``max_requests_in_flight`` and ``hedge`` are used.
        environment: ``STORAGE_EMULATOR_HOST``, which an explicit ``endpoint_url`` overrides.

    Raises:
        ValueError: The scheme does not accept one of its options.
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
        # Second attempts run in addition to the window, because they are needed most when every read in it is silent.
        max_connections=most_connections(
            (_LARGEST_WINDOW if options.max_requests_in_flight == AUTOTUNE else options.max_requests_in_flight)
            + (options.hedge.max_at_once if options.hedge.enabled else 0)
        ),
    )


def most_connections(wanted: int) -> int:
    """At most so many, and half of the descriptors that the process may have: loops and functions need some, too."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if limit == resource.RLIM_INFINITY else max(1, min(wanted, limit // _PART_OF_LIMIT))


def _opener_of(url: str, scheme: str, choice: object) -> str | Callable[[ReaderSpec], RangeReader]:
    """Returns what opens readers of a scheme; the option ``backend`` chooses if there is a choice."""
    if choice is None:
        served = backend_of(scheme)
        return FSSPEC if served is None else served.open_reader
    if choice == "fsspec":
        return FSSPEC
    if choice == "obstore" and scheme in SCHEMES:
        return OBSTORE
    raise UnsupportedURLError(
        f"the option 'backend' of {scheme} is {choice!r}, but must be 'fsspec'"
        + (" or 'obstore'" if scheme in SCHEMES else ""),
        url=url,
    )


def _with_emulator(options: Mapping[str, Any], host: str | None) -> Mapping[str, Any]:
    """Sends no credentials to an emulator unless they are named."""
    if host is None or options.get("endpoint_url"):
        return options
    endpoint = host if "://" in host else f"http://{host}"
    return {"token": "anon", **options, "endpoint_url": endpoint}
