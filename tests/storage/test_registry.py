from __future__ import annotations

import asyncio
import pickle

import pytest

from asyncdata.errors import UnsupportedURLError
from asyncdata.options import Environment, Options, TimeoutOptions
from asyncdata.storage.reader import RangeReader
from asyncdata.storage.registry import spec_for


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
        ("s3://b/o", "fsspec"),
        ("hdfs://h/o", "hdfs.reader"),
        ("webhdfs://h/o", "webhdfs.reader"),
        ("swebhdfs://h/o", "webhdfs.reader"),
        ("az://c/o", "fsspec"),
    ],
)
def test_every_scheme_has_its_backend(url: str, backend: str) -> None:
    """What is unknown goes to fsspec."""
    options = Options(timeouts=TimeoutOptions(idle_s=3.0), max_requests_in_flight=7)
    spec = spec_for(url, options, Environment())
    assert spec.backend == f"asyncdata.storage.{backend}"
    assert (spec.timeouts.idle_s, spec.max_connections) == (3.0, 7)


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
