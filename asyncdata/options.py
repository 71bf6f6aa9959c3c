"""Frozen option records and AUTOTUNE. Only this module reads the environment."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias, TypeVar

from asyncdata import arguments
from asyncdata.wording import kind_of

AUTOTUNE: Final = -1
"""Let asyncdata choose; accepted wherever tf.data accepts ``tf.data.AUTOTUNE`` (the same value)."""

MOST_WORKERS: Final = 1024
"""Processes; more are a mistake, which would take all of the machine."""

KIB: Final = 1 << 10
MIB: Final = 1 << 20

SCHEME_ALIASES: Final[Mapping[str, str]] = {
    "gcs": "gs",
    "local": "file",
    "s3a": "s3",
    "abfs": "az",
    "abfss": "az",
    "azure": "az",
}
"""Aliases of schemes; ``Options.storage`` keeps their options under the other name."""

R = TypeVar("R", bound="OptionRecord")
Storage: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Storage options by URL scheme."""


class OptionRecord:
    """Base class of the option records; remembers which fields were given.

    A field that was not given has its default, and any other record overrides it in a merge. A field that was given its
    default is not overridden. ``repr`` shows only the fields that were given. Pickling and copying keep the difference;
    ``==`` compares values, and ``dataclasses.replace`` gives every field.

    Attributes:
        given: The names of the fields that were given.
    """

    __slots__ = ("given",)
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    given: frozenset[str]

    def __new__(cls, *positional: object, **given: object) -> Self:
        """Remembers the names; the dataclass checks the values and sets them."""
        del positional
        for name in given:
            if name not in cls.__dataclass_fields__:
                raise arguments.unexpected_keyword(cls.__name__, name, cls.__dataclass_fields__)
        record = super().__new__(cls)
        object.__setattr__(record, "given", frozenset(given))
        return record

    def said(self) -> dict[str, Any]:
        """The fields that were given, with their values."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name in self.given}

    def __repr__(self) -> str:
        hidden = {each.name for each in fields(self) if not each.repr}
        shown = (f"{name}={value!r}" for name, value in self.said().items() if name not in hidden)
        return f"{type(self).__name__}({', '.join(shown)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (type(self), self.said())


def _remade(kind: type[R], said: dict[str, Any]) -> R:
    return kind(**said)


def merged(outer: R, inner: R) -> R:
    """Returns ``outer``, with the fields of ``inner`` that ``outer`` does not give.

    Nested records are merged field by field, ``storage`` by scheme and key. Merging is associative, and a record
    without any field is neutral.
    """
    theirs = inner.said()
    both = {name: _joined(value, theirs[name]) for name, value in outer.said().items() if name in theirs}
    return type(outer)(**{**theirs, **outer.said(), **both})


def _joined(outer: Any, inner: Any) -> Any:
    """Returns the value of a field that both records give."""
    if isinstance(outer, OptionRecord):
        # An inner None gives no fields, neither now nor later, so the outer value replaces it as a whole.
        return replace(outer) if inner is None else merged(outer, inner)
    return merged_storage(outer, inner) if isinstance(outer, Mapping) else outer


def merged_storage(outer: Storage, inner: Storage) -> Storage:
    """Merges options by scheme and key: the outer ones, plus inner ones with other keys."""
    return {scheme: {**inner.get(scheme, {}), **outer.get(scheme, {})} for scheme in {**inner, **outer}}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RetryOptions(OptionRecord):
    """How failed reads are retried.

    Example:
        >>> import asyncdata as ad
        >>> ad.Options(retry=ad.RetryOptions(max_attempts=5, deadline_s=30)).retry.max_attempts
        5

    Attributes:
        max_attempts: Attempts in total, including the first. Progress inside a body does not reset the count.
        initial_delay_s: Upper bound of the first delay; delays are uniform in [0, upper bound] (full jitter).
        max_delay_s: Where the doubling of the upper bound stops.
        deadline_s: No new attempt is asked for this long after the first one began. If an object's size is known only
            when its body ends, the attempt that opens it is also limited to this time.
    """

    max_attempts: int = 20
    initial_delay_s: float = 0.1
    max_delay_s: float = 8.0
    deadline_s: float = 120.0

    def __post_init__(self) -> None:
        arguments.integer("max_attempts", self.max_attempts, least=1)
        for name in ("initial_delay_s", "max_delay_s", "deadline_s"):
            arguments.number(name, getattr(self, name), least=0)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TimeoutOptions(OptionRecord):
    """Time limits of one attempt. A limit that is too small costs retries; one that is too large hides a stall.

    asyncdata learns the limits in force from what it observes. These values are their maximum, and apply until enough
    was observed.

    Example:
        >>> import asyncdata as ad
        >>> ad.Options(timeouts=ad.TimeoutOptions(first_byte_s=20)).timeouts.first_byte_s
        20

    Attributes:
        connect_s: Name look-up, TCP, a proxy's tunnel and TLS together.
        first_byte_s: From sending the request, with all data of a write, to the end of the response's head.
        idle_s: The longest silence inside a body.
        floor_s: No learned limit is shorter.
        least_bytes_per_s: A body that is slower than this over ``idle_s`` is abandoned; 0 for never.
    """

    connect_s: float = 10.0
    first_byte_s: float = 5.0
    idle_s: float = 3.0
    floor_s: float = 1.0
    least_bytes_per_s: float = 2048.0

    def __post_init__(self) -> None:
        for name in ("connect_s", "first_byte_s", "idle_s", "floor_s"):
            arguments.number(name, getattr(self, name), above=0)
        arguments.number("least_bytes_per_s", self.least_bytes_per_s, least=0)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HedgeOptions(OptionRecord):
    """Second attempts at reads that have fallen silent. The one that is ahead continues; the other is dropped.

    Example:
        >>> import asyncdata as ad
        >>> ad.Options(hedge=ad.HedgeOptions(max_extra=0.01)).hedge.enabled
        True

    Attributes:
        enabled: False waits for the time limits.
        max_extra: The most requests that hedging adds, as a fraction of the requests made without it.
        tail_factor: A read is hedged after silence of this many times the 90th percentile of first-byte times; after
            half of that while a quarter of the allowed requests are unused.
        least_delay_s: A read is never hedged sooner; never sooner than half of it while they are unused.
        most_delay_s: A read is hedged after this time even if nothing was measured yet.
        probe_bytes: The most that a second attempt requests and holds in its own memory; the winner's connection reads
            the rest. While a quarter of the allowed requests are unused, it requests all missing bytes, as far as the
            memory of ``max_at_once`` second attempts goes.
        max_at_once: Second attempts in flight at a time.
    """

    enabled: bool = True
    max_extra: float = 0.05
    tail_factor: float = 3.0
    least_delay_s: float = 0.2
    most_delay_s: float = 2.0
    probe_bytes: int = 512 * KIB
    max_at_once: int = 8

    def __post_init__(self) -> None:
        arguments.flag("enabled", self.enabled, strict=True)
        arguments.number("max_extra", self.max_extra, least=0, most=1)
        arguments.number("least_delay_s", self.least_delay_s, above=0)
        arguments.number("most_delay_s", self.most_delay_s, above=0)
        if self.least_delay_s > self.most_delay_s:
            raise ValueError(
                f"least_delay_s must be at most most_delay_s, not {self.least_delay_s} and {self.most_delay_s}"
            )
        arguments.number("tail_factor", self.tail_factor, least=1)
        arguments.integer("probe_bytes", self.probe_bytes, least=1)
        arguments.integer("max_at_once", self.max_at_once, least=1)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ErrorPolicy(OptionRecord):
    """Skips elements that fail, up to a quota. Without a policy the first failure ends the pipeline.

    Example:
        >>> import asyncdata as ad
        >>> ds = ad.Dataset.from_tensor_slices([1, 0, 2]).map(lambda x: 2 // int(x))
        >>> [int(x) for x in ds.with_options(ad.Options(errors=ad.ErrorPolicy(max_skipped=1)))]
        [2, 1]

    Attributes:
        max_skipped: The most elements that may fail in one iteration; a shard that ends early counts as one. None: no
            limit.
        max_fraction: The largest fraction of the elements seen by a step that may fail in it. None: no limit.
        min_elements: How many elements a step must see before `max_fraction` applies, so it never applies to smaller
            datasets. With ``max_fraction=0`` the first failure is one too many.
        max_in_a_row: The most failures of one step without a good element between them. This limit always exists, so
            that an endless dataset in which everything fails ends.
        skip_unreachable: Also end a shard early if its storage cannot be read after all attempts. An outage would then
            empty a whole epoch, shard by shard.
        quarantine: A local file to which each failure appends a line of JSON: ``id``, ``url``, ``generation``,
            ``offset``, ``record``, ``stage``, ``error``. The id is the same in every run of the epoch. None: no file.
        log_warning: Also log every failure.
    """

    max_skipped: int | None = 100
    max_fraction: float | None = None
    min_elements: int = 1000
    max_in_a_row: int = 10_000
    skip_unreachable: bool = False
    quarantine: str | os.PathLike[str] | None = None
    log_warning: bool = False

    def __post_init__(self) -> None:
        arguments.integer_or_none("max_skipped", self.max_skipped, least=0)
        if self.max_fraction is not None:
            arguments.number("max_fraction", self.max_fraction, least=0, most=1)
        arguments.integer("min_elements", self.min_elements, least=1)
        arguments.integer("max_in_a_row", self.max_in_a_row, least=1)
        arguments.flag("skip_unreachable", self.skip_unreachable, strict=True)
        arguments.flag("log_warning", self.log_warning, strict=True)
        if self.quarantine is not None:
            _local("quarantine", self.quarantine)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Options(OptionRecord):
    """Everything about *how* a pipeline runs.

    With a fixed seed, only ``errors`` and ``on_change="restart"`` change which elements a deterministic pipeline
    yields.

    Example:
        >>> import asyncdata as ad
        >>> options = ad.Options(memory_limit_bytes=256 << 20, num_workers=2, seed=1)
        >>> ds = ad.Dataset.range(100).shuffle(100).with_options(options)
        >>> [int(x) for x in ds.take(3).iterator(epoch=0)] == [int(x) for x in ds.take(3).iterator(epoch=0)]
        True

    Attributes:
        memory_limit_bytes: One limit for all buffers of the pipeline: reads in flight, read-ahead, shuffle buffers,
            decoded batches, prefetch. A stage that cannot work within the limit raises ``MemoryLimitError``.
        deterministic: Default of every stage's ``deterministic``. False lets stages deliver what is ready first;
            ``interleave`` keeps the order within each shard.
        num_workers: Number of worker processes, which start when a function is to run in them. ``AUTOTUNE``: as many as
            there are tasks for, at most the number of CPUs that the process's affinity and the quota of its container
            allow; workers that are not needed are stopped. 0 runs user functions in threads. At most 1024.
        num_threads: Threads for ``executor="thread"`` functions and plain generators. ``AUTOTUNE``: twice the number of
            usable CPUs.
        chunk_bytes: Size of one ranged read. Larger reads cost less CPU per byte and hold more memory. ``AUTOTUNE``: 8
            MiB from local files, 4 MiB from other stores, where many reads are in flight at a time.
        max_requests_in_flight: The most ranged reads at a time, over all shards. ``AUTOTUNE`` finds the smallest number
            that fills the link from measured first-byte times and rates; see ``stats().fetch`` of an iterator. A number
            is never changed.
        max_bytes_in_flight: The most bytes of these reads together. ``AUTOTUNE``: the memory limit.
        receivers: Processes that receive from ``gs``, ``http`` and ``https``, each with connections of its own. 1: this
            process does, and no other is started. ``AUTOTUNE``: 1, and another number whenever all are busy for more
            than 70 % of the time while a processor is idle.
        check_crc: Verify the CRC-32C of every TFRecord payload before anything reads it.
        check_object_crc: Verify the CRC-32C that the store keeps of each object (``gs``) when all its bytes were read.
            Only the Runtime's option counts. Costs about 0.1 s of the I/O loop per GB.
        on_change: What to do if a file's object was replaced after it was listed or opened. ``"raise"`` raises
            ``ObjectChangedError``. ``"restart"`` reads the new version from its beginning and skips as many leading
            records as were delivered before, at most three times per file and epoch.
        seed: The seed of every step that draws without a seed of its own: ``shuffle``, ``list_files``,
            ``from_manifest``, ``random``, ``sample_from_datasets``, ``rejection_resample`` and ``map(rng=True)``. None
            draws one for every iteration; steps that draw the same in all iterations have one per dataset. With a seed,
            the same epoch is the same in every run.
        task_timeout_s: The longest time for one call of a user function in a worker process. After that time the
            process is replaced, its other elements run again, and the element raises ``TaskTimeoutError``, which
            ``errors`` may skip. None: no limit. Functions in threads and inline functions cannot be ended and have no
            limit.
        state_history: The number of elements for which `PipelineIterator.state_dict` can go back, because trainers
            read ahead of the element that they use.
        close_timeout_s: How long ``close()`` waits for running user code before it raises ``CloseTimeoutError``.
        order_log: A local file that records the order in which steps with ``deterministic=False`` delivered elements;
            ``replay`` repeats it. Iterators append to it, one at a time. See the how-to "Resume training".
        replay: An order log. The iterator gives the same elements as the one that wrote it, in the same order, also
            with other workers, memory and timing; ``StateError`` where the log ends. It must be another file than
            ``order_log``.
        errors: What to do with elements that fail, see ``ErrorPolicy``. None: the first failure ends the pipeline.
        retry: See ``RetryOptions``.
        timeouts: See ``TimeoutOptions``.
        hedge: See ``HedgeOptions``.
        isolate: Run the whole loader (loops, reads, memory, workers) in one child process, so that Python code of the
            consumer and of the loader does not compete for one interpreter. Everything in the plan must be picklable.
        profile_socket: Let ``asyncdata profile --pid`` of the same user ask for a profile and for the stacks of all
            threads, through a socket in a directory that only this user can enter.
        storage: Options of the backend by URL scheme, like fsspec's ``storage_options``. ``gs``: ``endpoint_url``,
            ``token`` (``"anon"``, ``"google_default"``, or a path to a credentials file), ``user_project``,
            ``project``, ``verify_tls``, ``ca_file``, ``proxy``, ``backend``. ``s3``: ``endpoint_url``, ``region``,
            ``key``, ``secret``, ``token``, ``anon``, ``requester_pays``, and ``az``: ``account_name``, ``account_key``,
            ``sas_token``, ``tenant_id``, ``client_id``, ``client_secret``, ``anon``, ``endpoint_url``; both
            ``verify_tls``, ``ca_file``, ``proxy``, ``config``, ``backend``. ``http``, ``https``: ``headers``,
            ``verify_tls``, ``ca_file``, ``proxy``. ``hdfs``: ``config``, ``config_dir``, ``kerberos_principal``,
            ``kerberos_keytab``, ``kerberos_cache``. ``webhdfs``, ``swebhdfs``: ``user``, ``do_as``,
            ``delegation_token_file``, ``verify_tls``, ``ca_file``. Any other: fsspec's, and ``verify_version``. Keep
            secrets in files or in the environment, because a pipeline may be pickled or printed.
    """

    memory_limit_bytes: int = 1024 * MIB
    deterministic: bool = True
    num_workers: int = AUTOTUNE
    num_threads: int = AUTOTUNE
    chunk_bytes: int = AUTOTUNE
    max_requests_in_flight: int = AUTOTUNE
    max_bytes_in_flight: int = AUTOTUNE
    receivers: int = AUTOTUNE
    check_crc: bool = True
    check_object_crc: bool = False
    on_change: Literal["raise", "restart"] = "raise"
    seed: int | None = None
    task_timeout_s: float | None = None
    state_history: int = 16
    close_timeout_s: float = 10.0
    order_log: str | os.PathLike[str] | None = None
    replay: str | os.PathLike[str] | None = None
    errors: ErrorPolicy | None = None
    retry: RetryOptions = field(default_factory=RetryOptions)
    timeouts: TimeoutOptions = field(default_factory=TimeoutOptions)
    hedge: HedgeOptions = field(default_factory=HedgeOptions)
    isolate: bool = False
    profile_socket: bool = False
    storage: Storage = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        arguments.integer("memory_limit_bytes", self.memory_limit_bytes, least=MIB)
        arguments.integer("num_workers", self.num_workers, least=0, most=MOST_WORKERS, autotune=True)
        arguments.integer("num_threads", self.num_threads, least=1, autotune=True)
        arguments.integer("chunk_bytes", self.chunk_bytes, least=4 * KIB, autotune=True)
        arguments.integer("max_requests_in_flight", self.max_requests_in_flight, least=1, autotune=True)
        arguments.integer("max_bytes_in_flight", self.max_bytes_in_flight, least=1, autotune=True)
        arguments.integer("receivers", self.receivers, least=1, most=64, autotune=True)
        for name in ("deterministic", "check_crc", "check_object_crc", "isolate", "profile_socket"):
            arguments.flag(name, getattr(self, name), strict=True)
        arguments.choice("on_change", self.on_change, ("raise", "restart"))
        object.__setattr__(self, "seed", arguments.seed("seed", self.seed))
        if self.task_timeout_s is not None:
            arguments.number("task_timeout_s", self.task_timeout_s, least=0.001, most=1e9)
        arguments.integer("state_history", self.state_history, least=0)
        arguments.number("close_timeout_s", self.close_timeout_s, above=0)
        for name in ("order_log", "replay"):
            if (path := getattr(self, name)) is not None:
                _local(name, path)
        if self.replay is not None and self.order_log is not None and _is_same(self.order_log, self.replay):
            raise ValueError("order_log and replay must be two files: what is repeated is not written to")
        if self.errors is not None:
            arguments.instance("errors", self.errors, ErrorPolicy, "an ErrorPolicy or None")
        arguments.instance("retry", self.retry, RetryOptions, "RetryOptions")
        arguments.instance("timeouts", self.timeouts, TimeoutOptions, "TimeoutOptions")
        arguments.instance("hedge", self.hedge, HedgeOptions, "HedgeOptions")
        object.__setattr__(self, "storage", _by_scheme(self.storage))


def _local(name: str, path: Any) -> None:
    if "://" in (url := arguments.url(name, path)):
        raise ValueError(f"{name} must be a local file, not {arguments.shown(url)}")


def _is_same(path: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    return os.path.realpath(path) == os.path.realpath(other)


def _by_scheme(storage: Any) -> dict[str, dict[str, Any]]:
    """Returns a copy with the usual name of each scheme. Never shows a value, because it may contain a secret."""
    if not isinstance(storage, Mapping):
        raise TypeError(f"storage must be a dict of options per URL scheme, not {kind_of(storage)}")
    for scheme, options in storage.items():
        arguments.instance("every key of storage", scheme, str, "a URL scheme as a str")
        if "://" in scheme or scheme.endswith(":"):
            raise ValueError(f"every key of storage must be a URL scheme, such as 'gs', not {arguments.shown(scheme)}")
        if not isinstance(options, Mapping):
            raise TypeError(f"storage[{arguments.shown(scheme)}] must be a dict of options, not {kind_of(options)}")
    # Usual names come last, so that their options win over those of an alias.
    found: dict[str, dict[str, Any]] = {}
    for scheme in sorted(storage, key=lambda scheme: scheme not in SCHEME_ALIASES):
        found.setdefault(SCHEME_ALIASES.get(scheme, scheme), {}).update(storage[scheme])
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The environment variables that asyncdata uses, as they were when a Runtime started.

    Attributes:
        storage_emulator_host: ``STORAGE_EMULATOR_HOST``: base URL of a GCS emulator, with or without ``http://``.
        http_proxy: ``http_proxy`` or ``HTTP_PROXY``, or else ``all_proxy``: the proxy for ``http://`` URLs.
        https_proxy: ``https_proxy`` or ``HTTPS_PROXY``, or else ``all_proxy``: the proxy for ``https://`` URLs.
        no_proxy: ``no_proxy`` or ``NO_PROXY``: hosts that are reached without a proxy.
        rank: ``RANK``, as launchers of distributed training set it: the number of this process.
        world: ``WORLD_SIZE``: how many processes there are.
    """

    storage_emulator_host: str | None = field(default=None, repr=False)
    http_proxy: str | None = field(default=None, repr=False)
    https_proxy: str | None = field(default=None, repr=False)
    no_proxy: str | None = None
    rank: str | None = None
    world: str | None = None


def read_environment() -> Environment:
    """Reads the environment. A Runtime calls it once when it starts; it is never called at import."""
    return Environment(
        storage_emulator_host=os.environ.get("STORAGE_EMULATOR_HOST") or None,
        http_proxy=_proxy_variable("http") or _proxy_variable("all"),
        https_proxy=_proxy_variable("https") or _proxy_variable("all"),
        no_proxy=_proxy_variable("no"),
        rank=os.environ.get("RANK") or None,
        world=os.environ.get("WORLD_SIZE") or None,
    )


def _proxy_variable(kind: str) -> str | None:
    """Returns a variable. Lower case wins; CGI programs ignore HTTP_PROXY in capitals, because clients can set it."""
    value = os.environ.get(f"{kind}_proxy")
    if value is None and not (kind == "http" and "REQUEST_METHOD" in os.environ):
        value = os.environ.get(f"{kind}_proxy".upper())
    return value or None


def set_variables(names: Iterable[str]) -> list[str]:
    """Returns the names of those environment variables that are set; their values may be secrets."""
    return [name for name in names if os.environ.get(name)]
