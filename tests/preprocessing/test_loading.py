from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.preprocessing.loading import loaded
from tests.architecture.tree import ROOT
from tests.patience import LIMIT_S
from tests.preprocessing.functions import FUNCTIONS


def same(found: Any, expected: Any) -> None:
    """Two results are equal, and of one type."""
    if isinstance(expected, ad.RaggedArray):
        assert found == expected
    else:
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype


@pytest.mark.parametrize(("function", "leaf"), FUNCTIONS, ids=lambda value: type(value).__name__)
def test_a_function_comes_back_as_it_was(function: Any, leaf: Any, tmp_path: Path) -> None:
    """By pickle, by JSON text and by file, alone and in nests: equal, with the same results."""
    path = tmp_path / "function.json"
    path.write_text("something older")
    function.save(path)
    nest = ad.ByLeaf({"a": function, "b": (None, {"c": function})})
    nest.save(tmp_path / "nest.json")
    assert ad.load_preprocessing(tmp_path / "nest.json") == pickle.loads(pickle.dumps(nest)) == nest
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["function.json", "nest.json"]
    for copy in (pickle.loads(pickle.dumps(function)), ad.load_preprocessing(path), loaded(function.to_json())):
        assert copy == function
        assert repr(copy) == repr(function)
        same(copy(leaf), function(leaf))


@pytest.mark.parametrize(("function", "leaf"), FUNCTIONS, ids=lambda value: type(value).__name__)
def test_a_damaged_file_is_refused(function: Any, leaf: Any, tmp_path: Path) -> None:
    """Truncated anywhere, of a later version, or with other arguments: a DataError that names the file."""
    text = function.to_json()
    # A file of asyncdata 0.2.15 has no checksum, which would find everything but the truncations.
    saved = {key: part for key, part in json.loads(text).items() if key != "checksum"}
    assert loaded(json.dumps(saved)) == function
    damaged = [
        *(text[:end] for end in range(0, len(text), 7)),
        json.dumps({**saved, "version": 2}),
        json.dumps({**saved, "format": "x"}),
        json.dumps({**saved, "function": "system"}),
        json.dumps({**saved, "arguments": {"no": 1}}),
        json.dumps({**saved, "arguments": [1]}),
        json.dumps({"format": saved["format"], "version": 1, "leaves": {"dict": 3}}),
        "[" * 100_000,
        "[]",
    ]
    path = tmp_path / "file.json"
    for text in damaged:
        path.write_text(text)
        with pytest.raises(ad.DataError, match=r"file\.json"):
            ad.load_preprocessing(path)


def test_numbers_beyond_floats_are_damage(tmp_path: Path) -> None:
    """In a file without a checksum."""
    saved = json.loads(ad.Normalize(1.0, 2.0).to_json())
    saved.pop("checksum")
    saved["arguments"]["mean"] = 10**400
    path = tmp_path / "file.json"
    path.write_text(json.dumps(saved))
    with pytest.raises(ad.DataError, match=r"file\.json"):
        ad.load_preprocessing(path)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(("function", "leaf"), FUNCTIONS, ids=lambda value: type(value).__name__)
def test_no_letter_changes_unnoticed(function: Any, leaf: Any, nested: bool) -> None:
    """Another letter in any place is a DataError, or means the same, as white space and the case of an escape do."""
    saved = ad.ByLeaf({"a": (function, None)}) if nested else function
    text = saved.to_json()
    for place, letter in enumerate(text):
        for other in {chr(ord(letter) ^ 1), chr(ord(letter) ^ 32), *"0 "} - {letter}:
            try:
                found = loaded(f"{text[:place]}{other}{text[place + 1 :]}")
            except ad.DataError:
                continue
            assert found == saved, (place, other)


def test_a_file_may_be_laid_out_anew() -> None:
    """What a formatter does to JSON is no damage."""
    function = ad.Lookup(["ä", b"\xff"], output_mode="tf_idf", idf_weights=[0.1, 1e-300])
    assert loaded(json.dumps(json.loads(function.to_json()), indent=2, sort_keys=True, ensure_ascii=False)) == function


def test_numpy_integers_are_integers() -> None:
    """As single arguments, and in the file."""
    one: Any = np.int64(1)
    for function, same_one in [
        (ad.HashToBins(5, mask_value=one, salt=one), ad.HashToBins(5, mask_value=1, salt=1)),
        (ad.Lookup(["a"], salt=one), ad.Lookup(["a"], salt=1)),
        (ad.TextVectorize(["a"], ngrams=one), ad.TextVectorize(["a"], ngrams=1)),
        (ad.Normalize([0.0], [1.0], axis=-one), ad.Normalize([0.0], [1.0])),
    ]:
        assert loaded(function.to_json()) == function == same_one


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """Nor is there a file where none was written."""
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ad.DataError, match="no text"):
        ad.load_preprocessing(tmp_path / "x")
    with pytest.raises(FileNotFoundError):
        ad.load_preprocessing(tmp_path / "none")
    with pytest.raises(ValueError, match=r"only local files .* 'gs://bucket/x' .* to_json"):
        ad.Normalize(0.0, 1.0).save("gs://bucket/x")
    with pytest.raises(ValueError, match=r"only local files .* 'gs://bucket/x' .* copy it"):
        ad.load_preprocessing("gs://bucket/x")


def test_a_worker_loads_little_for_a_function() -> None:
    """Unpickling any function loads no network stack, no event loop and no dataset."""
    names = sorted({type(function).__module__ for function, _ in FUNCTIONS} | {"asyncdata.preprocessing.nest"})
    script = f"import importlib, sys; [importlib.import_module(name) for name in {names}]; print(*sys.modules)"
    outcome = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=LIMIT_S
    )
    loaded_modules = set(outcome.stdout.split())
    assert set(names) <= loaded_modules
    assert loaded_modules.isdisjoint({"aiohttp", "asyncio", "uvloop", "asyncdata.dataset", "asyncdata.runtime"})
