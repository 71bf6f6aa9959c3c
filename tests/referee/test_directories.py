"""Keras as the referee of labelled datasets made of directories."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.formats.image import encode_jpeg, encode_png
from tests.referee.process import Referee

SIZE = {"shuffle": False, "image_size": [20, 30]}
SMALL = {"shuffle": False, "image_size": [8, 8]}
TEXTS: dict[str, Any] = {"shuffle": False}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("images", SIZE),
    **{
        kind: ("images", {**SIZE, "interpolation": kind})
        for kind in ("nearest", "bicubic", "area", "lanczos3", "lanczos5", "gaussian", "mitchellcubic")
    },
    "crop": ("images", {**SIZE, "crop_to_aspect_ratio": True}),
    "crop nearest": ("images", {**SIZE, "crop_to_aspect_ratio": True, "interpolation": "nearest"}),
    "pad": ("images", {**SIZE, "pad_to_aspect_ratio": True}),
    "pad nearest": ("images", {**SIZE, "pad_to_aspect_ratio": True, "interpolation": "nearest"}),
    "first": ("images", {**SIZE, "data_format": "channels_first"}),
    "categorical": ("images", {**SMALL, "label_mode": "categorical", "batch_size": 5}),
    "binary": ("images", {**SMALL, "label_mode": "binary", "class_names": ["c", "a"]}),
    "not binary": ("images", {**SMALL, "label_mode": "binary"}),
    "no mode": ("images", {**SMALL, "label_mode": None}),
    "no labels": ("images", {**SMALL, "labels": None}),
    "labels": ("images", {**SMALL, "labels": [3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 5, 5, 5, 5]}),
    "one hot labels": ("images", {**SMALL, "labels": [3, 1] * 8, "label_mode": "categorical"}),
    "too few labels": ("images", {**SMALL, "labels": [3, 1, 2]}),
    "strange class": ("images", {**SMALL, "class_names": ["a", "x"]}),
    "both": ("images", {**SMALL, "validation_split": 0.3, "subset": "both"}),
    "validation": ("images", {**SMALL, "validation_split": 0.3, "subset": "validation", "seed": 5}),
    "training": ("images", {"image_size": [8, 8], "validation_split": 0.25, "subset": "training", "seed": 5}),
    "shuffled both": ("images", {"image_size": [8, 8], "validation_split": 0.25, "subset": "both", "seed": 7}),
    "no seed": ("images", {"image_size": [8, 8], "validation_split": 0.25, "subset": "both"}),
    "no subset": ("images", {**SMALL, "validation_split": 0.25}),
    "nothing left": ("images", {**SMALL, "validation_split": 0.01, "subset": "validation"}),
    "nothing to train": ("images", {**SMALL, "validation_split": 0.01, "subset": "training"}),
    "texts": ("texts", TEXTS),
    "short texts": ("texts", {**TEXTS, "max_length": 6, "label_mode": "categorical"}),
    "shuffled texts": ("texts", {"seed": 3, "validation_split": 0.4, "subset": "both"}),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images of uneven sizes and texts in three classes, and a hidden folder."""
    chance = np.random.default_rng(0)
    root = tmp_path / "root"
    for name in ("b", "a", "c", ".hidden"):
        (root / name / "sub").mkdir(parents=True)
        for i in range(4):
            height, width = chance.integers(5, 60, 2)
            pixels = chance.integers(0, 256, (height, width, 3), np.uint8)
            path = root / name / ("sub" if i == 3 else ".") / f"im{i}"
            if i == 2:
                path.with_suffix(".JPG").write_bytes(encode_jpeg(np.full_like(pixels, 40 * i)))
            else:
                path.with_suffix(".png").write_bytes(encode_png(pixels))
        (root / name / "x.txt").write_text(f"text {name} äöü")
        (root / name / "sub" / "y.txt").write_text(f"more {name}")
        (root / name / "ignored.md").write_text("")
    return root


def ours(function: str, folder: Path, arguments: dict[str, Any]) -> list[Any]:
    if "image_size" in arguments:
        arguments = {**arguments, "image_size": tuple(arguments["image_size"])}
    made = getattr(ad, f"{function[:-1]}_dataset_from_directory")(folder, verbose=False, **arguments)
    return made if isinstance(made, list) else [made]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_directories_are_read_as_keras_reads_them(referee: Referee, folder: Path, tmp_path: Path) -> None:
    """Files, order, classes, labels, splits, dtypes and pixels; and arguments that are refused."""
    result = tmp_path / "result.npz"
    referee.ask("tf_directories", {"folder": str(folder), "result": str(result), "cases": CASES})
    expected = dict(np.load(result))
    with ad.Runtime(ad.Options(num_workers=0)):
        for name, (function, arguments) in CASES.items():
            refused = expected.get(f"{name}/error")
            if refused is not None:
                with pytest.raises(ValueError, match=r"\w"):
                    ours(function, folder, arguments)
                continue
            for part, ds in enumerate(ours(function, folder, arguments)):
                where = f"{name}/{part}"
                assert (ds.class_names or []) == expected[f"{where}/classes"].tolist(), where
                paths = [os.path.relpath(path, folder) for path in ds.file_paths]
                if function == "images":
                    assert paths == expected[f"{where}/paths"].tolist(), where
                elements = [element if isinstance(element, tuple) else (element,) for element in ds]
                shuffled = arguments.get("shuffle", True) and part == 0
                for leaf in range(len(elements[0])):
                    rows = [row for element in elements for row in element[leaf]]
                    _compare(rows, expected[f"{where}/{leaf}"], where, shuffled=shuffled, bicubic=name == "bicubic")


def _compare(rows: list[Any], want: Any, where: str, *, shuffled: bool, bicubic: bool) -> None:
    """Pixels agree within the tolerance that is promised, everything else is equal."""
    if isinstance(rows[0], bytes):
        texts = want.tolist()
        assert (sorted(rows) == sorted(texts)) if shuffled else (rows == texts), where
        return
    found = np.stack(rows)
    assert found.dtype == want.dtype, where
    assert found.shape == want.shape, where
    if shuffled:
        found, want = (np.sort(array.reshape(len(array), -1).sum(1)) for array in (found, want))
        np.testing.assert_allclose(found, want, rtol=1e-4, err_msg=where)
    elif found.ndim == 4 and found.dtype == np.float32:
        np.testing.assert_allclose(found, want, atol=0.2 if bicubic else 0.01, rtol=0, err_msg=where)
    else:
        np.testing.assert_array_equal(found, want, where)
