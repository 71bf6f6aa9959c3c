"""`Dataset` is one class in one file, which a reader goes through as a list of words."""

from __future__ import annotations

import ast
import inspect
import pickle
import traceback
from pathlib import Path

import pytest

import asyncdata as ad
from asyncdata.dataset import dataset

CLASS = next(
    node
    for node in ast.parse(Path(dataset.__file__).read_text(encoding="utf-8")).body
    if isinstance(node, ast.ClassDef)
)
METHODS = [each for each in CLASS.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]


@pytest.mark.parametrize("method", [each for each in METHODS if each.name != "__init__"], ids=lambda each: each.name)
def test_a_method_is_signature_docstring_and_one_return(method: ast.FunctionDef) -> None:
    """What there is to check and to build is in the file of the method's family."""
    described = ast.get_docstring(method) is not None
    assert described or method.name.startswith("__")
    assert [type(statement) for statement in method.body[described:]] == [ast.Return]


def test_every_method_is_the_classs_own() -> None:
    """No other class stands behind it, for readers, tracebacks, docs and pickles."""
    assert ad.Dataset.__mro__ == (ad.Dataset, object)
    for name, method in inspect.getmembers(ad.Dataset, callable):
        if not name.startswith("_"):
            own = inspect.unwrap(method)
            assert own.__qualname__ == own.__code__.co_qualname == f"Dataset.{name}"
            assert own.__module__ == "asyncdata.dataset.dataset"
            assert pickle.loads(pickle.dumps(method)) is method


def test_a_traceback_names_the_method() -> None:
    """Whoever gave a wrong argument reads which method it was."""
    with pytest.raises(TypeError) as caught:
        ad.Dataset.range(3).batch("3")  # type: ignore[arg-type]  # that is the point
    frames = [frame.f_code.co_qualname for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    assert "Dataset.batch" in frames
