"""One process with TensorFlow for all tests of this folder: to import it takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.referee.process import Referee, interpreter


@pytest.fixture(scope="session")
def tensorflow() -> Iterator[Referee]:
    """The process."""
    referee = Referee(interpreter())
    yield referee
    referee.end()


@pytest.fixture(scope="module")
def referee(tensorflow: Referee) -> Iterator[Referee]:
    """The same, alive. One that took the place of another belongs to the module in which that died."""
    tensorflow.begin()
    yield tensorflow
    if tensorflow.deaths:
        tensorflow.end()
