"""What a dataset tells of itself as a whole: without running it, or by running it to its end."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from asyncdata import arguments
from asyncdata.dataset.handle import Handle
from asyncdata.dataset.parquet_spec import with_known_rows
from asyncdata.planner.cardinality import INFINITE_CARDINALITY, cardinality
from asyncdata.planner.element_spec import element_spec
from asyncdata.types import Element

S = TypeVar("S")


class Answers(Handle):
    """The part of `Dataset` whose answers are no datasets."""

    __slots__ = ()

    def cardinality(self) -> int:
        """How many elements there are, if that is known without running the pipeline.

        Returns:
            The number, or `INFINITE_CARDINALITY` (-1), or `UNKNOWN_CARDINALITY` (-2).

        Example:
            >>> import asyncdata as ad
            >>> ad.Dataset.range(10).batch(3).cardinality()
            4
            >>> ad.Dataset.range(10).repeat().cardinality() == ad.INFINITE_CARDINALITY
            True
            >>> ad.Dataset.range(10).filter(bool).cardinality() == ad.UNKNOWN_CARDINALITY
            True
        """
        return cardinality(self._node)

    @property
    def element_spec(self) -> Any:
        """What elements are made of: `ArraySpec` and its like, nested like an element.

        None stands for what only running would tell, such as what a function returns. Of `ParquetDataset` the footer
        of one file is read to know it; that a value may be missing is not part of a spec.

        Raises:
            StorageError: That file cannot be read.

        Example:
            >>> import asyncdata as ad
            >>> ad.Dataset.from_tensor_slices({"x": [1.0, 2.0], "name": ["a", "b"]}).batch(2).element_spec
            {'x': ArraySpec(shape=(None,), dtype=dtype('float64')), 'name': StrSpec(shape=(None,))}
        """
        return element_spec(with_known_rows(self._node))

    def __len__(self) -> int:
        count = self.cardinality()
        if count < 0:
            known = "infinite" if count == INFINITE_CARDINALITY else "not known without running it"
            raise TypeError(f"the number of elements of this dataset is {known}")
        return count

    def __bool__(self) -> bool:
        return True

    def reduce(self, initial_state: S, reduce_func: Callable[[S, Any], S]) -> S:
        """Runs the pipeline and folds its elements: ``state = reduce_func(state, element)``; the last state.

        Args:
            initial_state: The first state, and the answer when there are no elements.
            reduce_func: Called in this thread; a tuple element is one argument.

        Example:
            >>> import asyncdata as ad
            >>> int(ad.Dataset.range(5).reduce(0, lambda total, x: total + x))
            10
        """
        arguments.plain_function("reduce_func", reduce_func)
        state = initial_state
        with self.iterator() as elements:
            for element in elements:
                state = reduce_func(state, element)
        return state

    async def areduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """`reduce` for asyncio programs; `reduce_func` may be ``async def``.

        Example:
            >>> import asyncdata as ad, asyncio
            >>> int(asyncio.run(ad.Dataset.range(5).areduce(0, lambda total, x: total + x)))
            10
        """
        arguments.function("reduce_func", reduce_func)
        state = initial_state
        async with self.iterator() as elements:
            async for element in elements:
                state = reduce_func(state, element)
                if inspect.isawaitable(state):
                    state = await state
        return state

    def get_single_element(self) -> Element:
        """The only element.

        Raises:
            ValueError: There is none, or more than one.

        Example:
            >>> import asyncdata as ad
            >>> int(ad.Dataset.range(5).skip(4).get_single_element())
            4
        """
        with self.iterator() as elements:
            found = []
            for element in elements:
                found.append(element)
                if len(found) > 1:
                    break
        if len(found) != 1:
            raise ValueError(f"the dataset has {'more than one element' if found else 'no element'}, not a single one")
        return found[0]

    def as_numpy_iterator(self) -> Iterator[Element]:
        """The same as ``iter``: elements are made of numpy's arrays and numbers anyway.

        Example:
            >>> import asyncdata as ad
            >>> next(ad.Dataset.range(3).as_numpy_iterator())
            np.int64(0)
        """
        return iter(self.iterator())
