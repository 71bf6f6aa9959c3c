"""Option records: what was given is told from what was not, and records are merged field by field."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncdata as ad
from asyncdata.options import OptionRecord, merged
from tests.samples import samples

R = TypeVar("R", bound=OptionRecord)

RETRY = {"max_attempts": st.sampled_from([1, 20]), "deadline_s": st.sampled_from([1.0, 120.0])}
TIMEOUTS = {"connect_s": st.sampled_from([1.0, 10.0]), "idle_s": st.sampled_from([3.0, 4.0])}
ERRORS = {"max_skipped": st.sampled_from([100, None, 5]), "quarantine": st.sampled_from(["/a", None])}
STORAGE = st.dictionaries(
    st.sampled_from(["gs", "gcs", "s3"]), st.dictionaries(st.sampled_from(["token", "proxy"]), st.sampled_from("ab"))
)


def records(kind: type[R], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[R]:
    """Records of which any fields are given."""
    return st.fixed_dictionaries({}, optional=fields).map(lambda values: kind(**values))


OPTIONS = records(
    ad.Options,
    memory_limit_bytes=st.sampled_from([1 << 30, 1 << 25]),
    seed=st.sampled_from([None, 1, 2]),
    isolate=st.booleans(),
    errors=st.none() | records(ad.ErrorPolicy, **ERRORS),
    retry=records(ad.RetryOptions, **RETRY),
    timeouts=records(ad.TimeoutOptions, **TIMEOUTS),
    storage=STORAGE,
)


def same(one: OptionRecord, other: OptionRecord) -> bool:
    """Whether two records say the same, which is more than having the same values."""
    return one == other and repr(one) == repr(other) and said(one) == said(other)


def said(record: OptionRecord) -> dict[str, Any]:
    """What a record says, nested records included."""
    return {name: said(value) if isinstance(value, OptionRecord) else value for name, value in record.said().items()}


@settings(max_examples=samples(100, 5000))
@given(a=OPTIONS, b=OPTIONS, c=OPTIONS)
def test_merging_is_associative(a: ad.Options, b: ad.Options, c: ad.Options) -> None:
    """However many records are merged, the order of merging does not matter, only that of the records."""
    assert same(merged(merged(a, b), c), merged(a, merged(b, c)))


@settings(max_examples=samples(100, 5000))
@given(a=OPTIONS)
def test_a_record_that_says_nothing_is_neutral(a: ad.Options) -> None:
    """On either side; and a record merged with itself says the same."""
    assert same(merged(a, ad.Options()), a)
    assert same(merged(ad.Options(), a), a)
    assert same(merged(a, a), a)


@settings(max_examples=samples(100, 5000))
@given(outer=OPTIONS, inner=OPTIONS)
def test_the_outer_record_wins(outer: ad.Options, inner: ad.Options) -> None:
    """What it says holds, field by field; what only the inner one says holds, too; nothing else is said."""
    both = merged(outer, inner)
    assert both.given == outer.given | inner.given

    def holds(mine: dict[str, Any], theirs: dict[str, Any], found: dict[str, Any]) -> None:
        for name, value in mine.items():
            other = theirs.get(name)
            if isinstance(value, dict) and isinstance(other, dict):
                holds(value, other, found[name])
            elif isinstance(value, dict):
                holds(value, {}, found[name])
            else:
                assert found[name] == value
        assert {name: found[name] for name in theirs if name not in mine} == {
            name: value for name, value in theirs.items() if name not in mine
        }

    holds(said(outer), said(inner), said(both))


@settings(max_examples=samples(50, 2000))
@given(a=OPTIONS)
def test_copies_say_the_same(a: ad.Options) -> None:
    """Pickled, copied and deep-copied."""
    for other in (pickle.loads(pickle.dumps(a)), copy.copy(a), copy.deepcopy(a)):
        assert same(a, other)


def test_unset_is_not_the_default() -> None:
    """A default that was given counts against what an inner record says; one that was not does not."""
    inner = ad.Options(seed=5, num_workers=0)
    assert merged(ad.Options(seed=None), inner).seed is None
    assert merged(ad.Options(), inner).seed == 5
    assert merged(ad.Options(memory_limit_bytes=1 << 30), inner) == ad.Options(seed=5, num_workers=0)


def test_only_what_was_given_is_shown() -> None:
    """And of `storage` nothing, which may hold secrets."""
    assert repr(ad.Options()) == "Options()"
    options = ad.Options(seed=None, retry=ad.RetryOptions(max_attempts=20), storage={"gs": {"token": "hush"}})
    assert repr(options) == "Options(seed=None, retry=RetryOptions(max_attempts=20))"
    assert options == ad.Options(storage={"gs": {"token": "hush"}})


def test_a_policy_above_an_explicit_none_is_whole() -> None:
    """`errors=None` says that no element may fail: what lies below it is not taken up again."""
    strict, lenient = ad.Options(errors=None), ad.Options(errors=ad.ErrorPolicy(quarantine="/below"))
    above = ad.Options(errors=ad.ErrorPolicy(max_skipped=1))
    policy = merged(above, merged(strict, lenient)).errors
    assert policy is not None
    assert (policy.max_skipped, policy.quarantine) == (1, None)


def test_records_stay_dataclasses() -> None:
    """`replace` gives every field; the signature is that of the fields; no field can be changed."""
    options = dataclasses.replace(ad.RetryOptions(max_attempts=3), deadline_s=1)
    assert options == ad.RetryOptions(max_attempts=3, deadline_s=1)
    assert options.given == {each.name for each in dataclasses.fields(ad.RetryOptions)}
    assert list(inspect.signature(ad.RetryOptions).parameters) == [each.name for each in dataclasses.fields(options)]
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.deadline_s = 2  # type: ignore[misc]  # that is the point


def test_a_wrong_name_is_answered_with_the_right_one() -> None:
    """Of an option, where it is like one."""
    with pytest.raises(
        TypeError, match=r"^Options\(\) got an unexpected .* 'memory_limit'; .* 'memory_limit_bytes'\?$"
    ):
        ad.Options(memory_limit=1)  # type: ignore[call-arg]  # that is the point
    with pytest.raises(TypeError, match=r"^RetryOptions\(\) got an unexpected keyword argument 'xyz'$"):
        ad.RetryOptions(xyz=1)  # type: ignore[call-arg]  # that is the point


@pytest.mark.parametrize(
    ("storage", "message"),
    [
        ({"gss": {}}, "'gss', but there is no such URL scheme; did you mean 'gs'?"),
        ({"htp": {}}, "did you mean 'http'?"),
        ({"s4": {}}, "did you mean 's3'?"),
        ({"gz": {}}, "did you mean 'gs'?"),
        ({"GS": {}}, "did you mean 'gs'?"),
        ({"HTTPS": {}}, "did you mean 'https'?"),
        ({"sftpp": {}}, "did you mean 'sftp'?"),
        ({"gs": {"tokn": "hush"}}, "storage['gs'] has the unknown option 'tokn'; did you mean 'token'?"),
        ({"gcs": {"endpoint": "hush"}}, "'endpoint'; did you mean 'endpoint_url'?"),
        ({"gs": {"config": "hush"}}, "gs:// takes backend, ca_file, endpoint_url"),
        ({"file": {"root": "hush"}}, "file:// takes none"),
        ({"s3": {"acces_key": "hush", "backend": "obstore"}}, "go into 'config'"),
        ({"http": {"header": {}}}, "did you mean 'headers'?"),
        ({"webhdfs": {"usr": "hush"}}, "did you mean 'user'?"),
        ({"hdfs": {"kerberos_keytabs": "hush"}}, "did you mean 'kerberos_keytab'?"),
        ({"ftp": {"usernme": "hush"}}, "storage['ftp'] has the unknown option 'usernme'; did you mean 'username'?"),
        ({"gs": {"backend": "fsspec", "consistancy": "hush"}}, "did you mean 'consistency'?"),
    ],
)
def test_unknown_storage_options_are_refused_at_once(storage: Any, message: str) -> None:
    """By `with_options`, a Runtime and `write_manifest`, with the nearest name and without a value."""
    options = ad.Options(storage=storage)
    uses: list[Callable[[], Any]] = [
        lambda: ad.Dataset.range(1).with_options(options),
        lambda: ad.Runtime(options),
        lambda: ad.write_manifest("/x", "/y", options),
    ]
    for use in uses:
        with pytest.raises(ValueError, match="storage") as caught:
            use()
        assert message in str(caught.value)
        assert "hush" not in str(caught.value)


def test_storage_options_that_are_known_elsewhere() -> None:
    """fsspec's schemes and options pass, and so do those of a scheme's other names."""
    storage: dict[str, dict[str, Any]] = {
        "sftp": {"host": "h", "any": 1},
        "gs": {"backend": "fsspec", "any": 1},
        "azure": {"anon": True},
    }
    options = ad.Options(storage=storage)
    assert list(ad.Dataset.range(1).with_options(options)) == [0]
    assert options.storage == {"sftp": storage["sftp"], "gs": storage["gs"], "az": {"anon": True}}
    storage["sftp"]["host"] = "changed"
    assert options.storage["sftp"]["host"] == "h"
