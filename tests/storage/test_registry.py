from __future__ import annotations

import asyncio
import pickle

import pytest

from asyncdata.errors import UnsupportedURLError
from asyncdata.options import Environment, HedgeOptions, Options, TimeoutOptions
from asyncdata.storage.reader import RangeReader
from asyncdata.storage.registry import spec_for
from asyncdata.storage.urls import scheme_of


@pytest.mark.parametrize(
    ("url", "backend"),
    [
        ("gs://b/o", "gcs.reader"),
        ("gcs://b/o", "gcs.reader"),
        ("/a/b", "local.reader"),
        ("a", "local.reader"),
        ("file:///a", "local.reader"),
        ("memory://x", "memory"),
        ("http://h/x", "http"),
        ("https://h/x", "http"),
        ("s3://b/o", "obstore"),
        ("hdfs://h/o", "hdfs.reader"),
        ("webhdfs://h/o", "webhdfs.reader"),
        ("swebhdfs://h/o", "webhdfs.reader"),
        ("az://c/o", "obstore"),
        ("ftp://h/o", "fsspec"),
    ],
)
def test_every_scheme_has_its_backend(url: str, backend: str) -> None:
    """What is unknown goes to fsspec."""
    options = Options(timeouts=TimeoutOptions(idle_s=3.0), max_requests_in_flight=7)
    spec = spec_for(url, options, Environment())
    assert spec.backend == f"asyncdata.storage.{backend}"
    assert (spec.timeouts.idle_s, spec.max_connections) == (3.0, 7 + options.hedge.max_at_once)


def test_a_spec_shows_no_option() -> None:
    """Options may hold secrets; they travel by pickle, not by print."""
    spec = spec_for("s3://b/o", Options(storage={"s3": {"secret": "hush"}}), Environment())
    assert "hush" not in repr(spec)
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert spec.options == {"secret": "hush"}


async def test_unknown_schemes_are_refused_with_a_reason() -> None:
    """A misspelt scheme, or one whose package is not installed."""
    for url in ("", "nonsense://x", "simplecache::gs://b/o"):
        with pytest.raises(UnsupportedURLError):
            spec_for(url, Options(), Environment()).open()


@pytest.mark.parametrize("url", ["gs://b/o", "/a", "memory://x", "http://h/x", "https://h/x", "file:///a"])
async def test_opened_readers_speak_the_protocol(url: str) -> None:
    """Opening connects to nothing, and closing at once leaves nothing."""
    reader = spec_for(url, Options(storage={"gs": {"token": "anon"}}), Environment()).open()
    assert isinstance(reader, RangeReader)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await reader.aclose()


@pytest.mark.parametrize(
    ("url", "choice", "backend"),
    [
        ("gs://b/o", "obstore", "obstore"),
        ("gs://b/o", "fsspec", "fsspec"),
        ("s3://b/o", "fsspec", "fsspec"),
        ("az://c/o", "obstore", "obstore"),
    ],
)
def test_a_backend_may_be_chosen(url: str, choice: str, backend: str) -> None:
    """By the option ``backend`` of the scheme."""
    storage = {scheme_of(url): {"backend": choice}}
    assert spec_for(url, Options(storage=storage), Environment()).backend == f"asyncdata.storage.{backend}"


@pytest.mark.parametrize(("url", "choice"), [("hdfs://h/o", "obstore"), ("gs://b/o", "gcsfs"), ("s3://b/o", "")])
def test_a_backend_that_does_not_serve_a_scheme(url: str, choice: str) -> None:
    """The error names what there is, and the URL."""
    with pytest.raises(UnsupportedURLError, match="'fsspec'") as caught:
        spec_for(url, Options(storage={scheme_of(url): {"backend": choice}}), Environment())
    assert caught.value.url == url


def test_second_attempts_have_room_beside_a_full_window() -> None:
    """As many connections as reads may run and second attempts beside them; no more where there are none."""
    options = Options(max_requests_in_flight=7, hedge=HedgeOptions(max_at_once=3))
    assert spec_for("gs://b/o", options, Environment()).max_connections == 10
    options = Options(max_requests_in_flight=7, hedge=HedgeOptions(enabled=False))
    assert spec_for("gs://b/o", options, Environment()).max_connections == 7
