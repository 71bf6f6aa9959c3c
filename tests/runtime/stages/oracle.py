"""tf.data's semantics as scalar code over lists, written from its documentation: what the stages are checked by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def interleave(
    elements: Sequence[T], inner: Callable[[T], Sequence[T]], cycle_length: int, block_length: int
) -> list[T]:
    """Elements from `cycle_length` inner datasets, `block_length` at a time.

    An inner dataset that ends gives its place up at once, and the turn goes on to the next place; the free place is
    filled by the next input element when its turn comes round.
    """
    out: list[T] = []
    rest = iter(elements)
    places: list[Iterator[T] | None] = [None] * cycle_length
    more = True
    place = 0
    while more or any(iterator is not None for iterator in places):
        iterator = places[place]
        if iterator is None and more:
            try:
                iterator = places[place] = iter(inner(next(rest)))
            except StopIteration:
                more = False
        if iterator is not None:
            for _ in range(block_length):
                try:
                    out.append(next(iterator))
                except StopIteration:
                    places[place] = None
                    break
        place = (place + 1) % cycle_length
    return out


def shuffle(elements: Sequence[T], buffer_size: int, draw: Callable[[int], int]) -> list[T]:
    """The buffer is filled; each output is drawn from it and replaced by the next input, until nothing is left.

    Args:
        elements: The input.
        buffer_size: Elements in the buffer.
        draw: Gives the next place below a bound.
    """
    rest = iter(elements)
    buffer: list[T] = []
    out: list[T] = []
    for element in rest:
        if len(buffer) < buffer_size:
            buffer.append(element)
            continue
        place = draw(len(buffer))
        out.append(buffer[place])
        buffer[place] = element
    while buffer:
        place = draw(len(buffer))
        out.append(buffer[place])
        buffer[place] = buffer[-1]
        buffer.pop()
    return out


def batch(elements: Sequence[T], size: int, *, drop_remainder: bool) -> list[list[T]]:
    """Consecutive elements, the last ones too unless they are to be dropped."""
    batches = [list(elements[i : i + size]) for i in range(0, len(elements), size)]
    return [b for b in batches if len(b) == size] if drop_remainder else batches


def take(elements: Sequence[T], count: int) -> list[T]:
    """The first `count`; all when -1."""
    return list(elements) if count == -1 else list(elements[:count])


def skip(elements: Sequence[T], count: int) -> list[T]:
    """All but the first `count`; none when -1."""
    return [] if count == -1 else list(elements[count:])


def repeat(make: Callable[[int], Sequence[T]], count: int) -> list[T]:
    """The dataset of each epoch, one after the other."""
    return [element for epoch in range(count) for element in make(epoch)]


def zip_datasets(datasets: Sequence[Sequence[T]]) -> tuple[list[tuple[T, ...]], list[int]]:
    """Elements side by side until the shortest ends, and how many each dataset has given by then.

    The end is met by asking every dataset once more.
    """
    out = list(zip(*datasets, strict=False))
    return out, [min(len(dataset), len(out) + 1) for dataset in datasets]


def choose(datasets: Sequence[Sequence[T]], choices: Sequence[int], *, stop_on_empty: bool) -> list[T]:
    """The next element of the dataset that each choice names."""
    rests = [iter(dataset) for dataset in datasets]
    live = set(range(len(datasets)))
    out: list[T] = []
    for choice in choices:
        if choice not in live:
            continue
        try:
            out.append(next(rests[choice]))
        except StopIteration:
            live.discard(choice)
            if stop_on_empty or not live:
                break
    return out


def shard(elements: Sequence[T], num_shards: int, index: int) -> list[T]:
    """Elements whose number leaves the remainder `index`."""
    return [element for number, element in enumerate(elements) if number % num_shards == index]


def unique(elements: Sequence[T]) -> list[T]:
    """Each element once, where it came first."""
    return list(dict.fromkeys(elements))
