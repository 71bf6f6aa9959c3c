"""Transformations of the order and number of elements, which never look at one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncdata import arguments
from asyncdata.dataset.handle import Handle
from asyncdata.plan import transformations

if TYPE_CHECKING:
    from asyncdata.dataset.dataset import Dataset


class Flow(Handle):
    """The part of `Dataset` with what passes elements on as they are."""

    __slots__ = ()

    def shuffle(
        self, buffer_size: int, seed: int | None = None, reshuffle_each_iteration: bool | None = None
    ) -> Dataset:
        """Draws at random from a buffer of the next `buffer_size` elements.

        Args:
            buffer_size: Elements in the buffer; uniform over all of them when it is no smaller than the dataset.
            seed: Of the draws; without one (and without `Options.seed`) every iteration differs.
            reshuffle_each_iteration: Whether epochs differ; True unless given. When False, every iteration of this
                dataset, and of what is made of it, has one order. Without a seed that order is drawn when `shuffle`
                is called, so another process that runs the same program has another one.

        Example:
            >>> import asyncdata as ad
            >>> sorted(int(x) for x in ad.Dataset.range(5).shuffle(5, seed=1))
            [0, 1, 2, 3, 4]
            >>> ds = ad.Dataset.range(5).shuffle(5, reshuffle_each_iteration=False)
            >>> sorted([*ds.take(2), *ds.skip(2)]) == list(range(5))
            True
        """
        reshuffle = arguments.flag_or_none("reshuffle_each_iteration", reshuffle_each_iteration)
        return self._derive(
            transformations.Shuffle(
                input=self._node,
                buffer_size=arguments.integer("buffer_size", buffer_size, least=1),
                seed=arguments.seed("seed", seed),
                reshuffle=reshuffle is not False,
            )
        )

    def repeat(self, count: int | None = None) -> Dataset:
        """The dataset `count` times over; for ever when None or -1. Shuffles upstream differ from one to the next.

        Example:
            >>> import asyncdata as ad
            >>> [int(x) for x in ad.Dataset.range(3).repeat(2)]
            [0, 1, 2, 0, 1, 2]
        """
        times = arguments.integer_or_none("count", count)
        return self._derive(
            transformations.Repeat(input=self._node, count=None if times is None or times < 0 else times)
        )

    def take(self, count: int) -> Dataset:
        """The first `count` elements; all of them when -1.

        Example:
            >>> import asyncdata as ad
            >>> [int(x) for x in ad.Dataset.range(10).take(2)]
            [0, 1]
        """
        return self._derive(transformations.Take(input=self._node, count=arguments.integer("count", count)))

    def skip(self, count: int) -> Dataset:
        """All but the first `count` elements; none when -1.

        Example:
            >>> import asyncdata as ad
            >>> [int(x) for x in ad.Dataset.range(5).skip(3)]
            [3, 4]
        """
        return self._derive(transformations.Skip(input=self._node, count=arguments.integer("count", count)))

    def ignore_errors(self, log_warning: bool = False) -> Dataset:
        """Leaves out the elements that fail in the steps before this one, however many they are.

        A record whose checksum does not hold, an element for which ``map``, ``filter`` or a parser raises: that
        element. A file that cannot be read on (damaged framing, missing, replaced): the rest of that file. A step of
        which 10,000 elements in a row fail ends the pipeline all the same, with ``TooManyErrorsError``. For a quota and
        a list of what was left out, see ``Options.errors``.

        Args:
            log_warning: Whether every failure is logged.

        Example:
            >>> import asyncdata as ad
            >>> ds = ad.Dataset.from_tensor_slices([1, 0, 2]).map(lambda x: 2 // int(x))
            >>> [int(x) for x in ds.ignore_errors()]
            [2, 1]
        """
        logged = arguments.flag("log_warning", log_warning)
        return self._derive(transformations.IgnoreErrors(input=self._node, log_warning=logged))

    def prefetch(self, buffer_size: int) -> Dataset:
        """Makes up to `buffer_size` elements ahead of the consumer; `AUTOTUNE` lets asyncdata choose.

        Example:
            >>> import asyncdata as ad
            >>> [batch.tolist() for batch in ad.Dataset.range(4).batch(2).prefetch(ad.AUTOTUNE)]
            [[0, 1], [2, 3]]
        """
        size = arguments.integer("buffer_size", buffer_size, least=0, autotune=True)
        return self._derive(transformations.Prefetch(input=self._node, buffer_size=size))
