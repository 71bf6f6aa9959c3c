"""Keras' side of ``test_directories``: reads a directory in many ways, and writes what that gives to a file."""

from __future__ import annotations

import os
from typing import Any

import keras
import numpy as np

FUNCTIONS = {
    "images": keras.utils.image_dataset_from_directory,
    "texts": keras.utils.text_dataset_from_directory,
}


def answer(question: dict[str, Any]) -> None:
    """Runs every case."""
    folder = question["folder"]
    out: dict[str, Any] = {}
    for name, (function, arguments) in question["cases"].items():
        try:
            made = FUNCTIONS[function](folder, verbose=False, **arguments)
            for part, ds in enumerate(made if isinstance(made, list) else [made]):
                elements = [element if isinstance(element, tuple) else (element,) for element in ds]
                for leaf in range(len(elements[0])):
                    out[f"{name}/{part}/{leaf}"] = np.stack(
                        [row for element in elements for row in element[leaf].numpy()]
                    )
                out[f"{name}/{part}/classes"] = np.array(ds.class_names or [], str)
                paths = getattr(ds, "file_paths", [])
                out[f"{name}/{part}/paths"] = np.array([os.path.relpath(path, folder) for path in paths], str)
        except Exception as error:  # noqa: BLE001 -- part of the answer
            out[f"{name}/error"] = np.array(f"{type(error).__name__}: {error}"[:300])
    np.savez(question["result"], **out)
