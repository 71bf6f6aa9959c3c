"""What goes by place or past, what a dataset tells of itself, and the old names."""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.dataset.handles import node_of
from asyncdata.planner.fingerprint import fingerprint

D = ad.Dataset


def ints(ds: ad.Dataset) -> list[int]:
    return [int(x) for x in ds]


async def later(x: Any) -> Any:
    """An async function."""
    return x


def test_enumerate_counts_on_across_repetitions_behind_it_only() -> None:
    """Numbers go on over repeats upstream, and begin again in repeats downstream."""
    ds = D.from_tensor_slices(["a", "b"])
    assert list(ds.repeat(2).enumerate()) == [(0, "a"), (1, "b"), (2, "a"), (3, "b")]
    assert list(ds.enumerate(7).repeat(2)) == [(7, "a"), (8, "b")] * 2
    assert all(isinstance(i, np.int64) for i, _ in ds.enumerate(-1))


def test_shard_of_a_shuffle_and_its_limits() -> None:
    """Shards of a seeded shuffle share its order; numbers out of range are refused."""
    ds = D.range(30).shuffle(30, seed=6)
    order = [int(x) for x in ds.iterator(epoch=0)]
    shards = [[int(x) for x in ds.shard(3, i).iterator(epoch=0)] for i in range(3)]
    assert shards == [order[i::3] for i in range(3)]
    for num_shards, index in ((0, 0), (2, 2), (2, -1), (-1, 0)):
        with pytest.raises(ValueError, match=r"index|num_shards"):
            ds.shard(num_shards, index)


def test_negative_counts() -> None:
    """As tf.data has them: any negative number is all, or for ever."""
    five = D.range(5)
    assert ints(five.take(-5)) == ints(five)
    assert ints(five.take(0)) == []
    assert ints(five.skip(-5)) == []
    assert ints(five.skip(0)) == ints(five)
    assert ints(five.repeat(-3).take(12)) == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
    assert ints(five.repeat(0)) == []


def test_counters_of_floats_take_floats() -> None:
    """Steps may be fractions where the dtype is a float; numbers that the dtype does not hold become infinite."""
    assert list(D.counter(0.5, -1.25, np.float32).take(3)) == [0.5, -0.75, -2.0]
    assert list(D.counter(60_000, 1e4, np.float16).take(2)) == [60_000, np.inf]
    for wrong in (0.5, "1", True):
        with pytest.raises(TypeError, match="start must be an integer"):
            D.counter(wrong)  # type: ignore[arg-type]  # refused when it runs, too
    with pytest.raises(TypeError, match="start must be a number, not '1'"):
        D.counter("1", dtype=np.float32)  # type: ignore[arg-type]  # the same
    with pytest.raises(ValueError, match="step must be finite, not nan"):
        D.counter(0, float("nan"), np.float32)


def test_repeat_counts_epochs_that_are_empty() -> None:
    """An epoch without elements is one of so many; for ever, it is the last."""
    runs = iter([[1, 2], [], [3], [], [4]])
    assert list(D.from_generator(lambda: next(runs)).repeat(3)) == [1, 2, 3]
    runs = iter([[1, 2], [], [3]])
    assert list(D.from_generator(lambda: next(runs)).repeat()) == [1, 2]


def test_scan_keeps_nests_and_says_what_is_wrong() -> None:
    """States and outputs nest freely; a function that returns no pair is named."""
    fibonacci = D.range(6).scan((0, 1), lambda state, _: ((state[1], sum(state)), state[0]))
    assert ints(fibonacci) == [0, 1, 1, 2, 3, 5]
    pairs = D.zip(D.range(3), D.range(3)).scan({"n": 0}, lambda s, pair: ({"n": s["n"] + 1}, (s["n"], pair)))
    assert list(pairs) == [(0, (0, 0)), (1, (1, 1)), (2, (2, 2))]
    assert ints(D.range(3).scan(0, lambda s, x: (s + int(x), s)).repeat(2)) == [0, 0, 1] * 2
    with pytest.raises(TypeError, match="new_state, output"):
        list(D.range(3).scan(0, lambda s, x: s + x))


def test_an_output_of_scan_is_not_its_state() -> None:
    """A function may return its state, changed in place or not; later calls and the consumer change only their own."""

    def summed(total: Any, x: Any) -> Any:
        total += x
        return total, {"total": total, "totals": [total]}

    found = list(D.range(4).scan(np.zeros((), np.int64), summed))
    assert found == [{"total": n, "totals": [n]} for n in (0, 1, 3, 6)]
    given: list[Any] = []

    def kept(total: Any, x: Any) -> Any:
        given.append(total + x)
        return given[-1], given[-1]

    for output in D.range(2).scan(np.zeros(1, np.int64), kept):
        output[:] = 7
    assert [total.tolist() for total in given] == [[0], [1]]


def test_reduce_and_its_async_twin() -> None:
    """The last state; without elements the first one; a tuple is one argument; async functions are awaited."""
    pairs = D.range(4).enumerate()
    assert pairs.reduce(0, lambda total, pair: total + int(pair[0] * pair[1])) == 14
    assert D.range(0).reduce("nothing", lambda s, _: s + "x") == "nothing"

    async def add(total: int, x: Any) -> int:
        await asyncio.sleep(0)
        return total + int(x)

    assert asyncio.run(D.range(5).areduce(0, add)) == 10
    assert asyncio.run(D.range(5).areduce(0, lambda total, x: total + int(x))) == 10


def test_a_single_element() -> None:
    """One is given; none and two are errors, and an endless dataset is not read to its end."""
    assert D.range(1).get_single_element() == 0
    for wrong, words in ((D.range(0), "no element"), (D.range(2), "more than one"), (D.counter(), "more than one")):
        with pytest.raises(ValueError, match=words):
            wrong.get_single_element()
    assert [int(x) for x in D.range(3).as_numpy_iterator()] == [0, 1, 2]


def test_asserted_cardinalities_are_checked() -> None:
    """More and fewer elements than announced are errors, behind those that were announced."""
    odd = D.range(6).filter(lambda x: x % 2)
    assert ints(odd.assert_cardinality(3)) == [1, 3, 5]
    for count in (2, 4, ad.INFINITE_CARDINALITY):
        with pytest.raises(ad.PipelineError, match="announced"):
            list(odd.assert_cardinality(count))
        with odd.assert_cardinality(count).iterator() as it:
            assert [int(next(it)) for _ in range(2)] == [1, 3]
    with pytest.raises(ValueError, match="expected_cardinality"):
        odd.assert_cardinality(ad.UNKNOWN_CARDINALITY)


def test_take_while_does_not_ask_again() -> None:
    """The predicate is not called behind the first element that it refuses."""
    asked = []

    def below_three(x: Any) -> bool:
        asked.append(int(x))
        return bool(x < 3)

    assert ints(D.range(100).take_while(below_three)) == [0, 1, 2]
    assert asked == [0, 1, 2, 3]


class Same:
    """An object without an equality of its own."""

    def __init__(self, number: int) -> None:
        self.number = number


class Incomparable:
    """Neither hashable nor picklable."""

    __hash__ = None  # type: ignore[assignment]  # that is what it is for

    def __reduce__(self) -> Any:
        raise RuntimeError("not to be sent")


def test_unique_compares_any_element() -> None:
    """What has no hash is compared by content; in front of what cannot be compared nothing is lost."""
    kinds: list[Callable[[], Any]] = [
        lambda: {"b", "a"},
        lambda: frozenset([1]),
        lambda: [[1], [2, 3]],
        lambda: [{1}, None],
        lambda: Same(1),
        lambda: Same(2),
        lambda: bytearray(b"b"),
    ]
    items = [make() for make in kinds * 2]
    assert list(D.from_generator(lambda: items).unique()) == items[: len(kinds)]
    found: list[Any] = []
    with pytest.raises(RuntimeError, match="not to be sent") as caught:
        found.extend(D.from_generator(lambda: [1, {2}, 1, Incomparable(), 3]).unique())
    assert found == [1, {2}]
    assert "element 3" in caught.value.__notes__[-1]


def test_unique_over_kinds() -> None:
    """Numbers, bytes, arrays, nests; the first of equals comes."""
    assert ints(D.range(100).map(lambda x: x % 7).unique()) == list(range(7))
    assert list(D.from_tensor_slices([b"b", b"a", b"b"]).unique()) == [b"b", b"a"]
    swapped = D.from_tensor_slices(np.array([1, 2], ">i8"))
    assert ints(swapped.concatenate(D.range(4)).unique()) == [1, 2, 0, 3]
    rows = D.from_tensor_slices(np.array([[1, 2], [2, 1], [1, 2]])).unique()
    assert [row.tolist() for row in rows] == [[1, 2], [2, 1]]
    assert list(D.range(6).map(lambda x: {"a": int(x) % 2, "b": "x"}).unique()) == [
        {"a": 0, "b": "x"},
        {"a": 1, "b": "x"},
    ]


def test_what_unique_remembers_is_within_the_limit() -> None:
    """Beside what others hold; what came before is delivered, and the limit that the error names is enough."""
    limit, found = 2 << 20, 0
    errors: list[tuple[int, ad.MemoryLimitError]] = []
    while found < 30_000 and len(errors) < 9:
        dataset, found = D.range(30_000).unique().shuffle(1000, seed=1), 0
        try:
            for _element in dataset.with_options(ad.Options(memory_limit_bytes=limit)):
                found += 1
        except ad.MemoryLimitError as error:
            errors.append((found, error))
            limit = int(re.findall(r"at least (\d+)", str(error))[-1])
    assert found == 30_000
    assert errors
    for before, raised in errors:
        assert before > 0
        assert "different elements are remembered" in str(raised.__notes__)


def test_rejection_resample_refuses_nonsense() -> None:
    """Distributions that are none, and classes that are not there."""
    wrong: list[Any] = [[], [0, 0], [1, -1], [[1.0]], [float("nan")]]
    for target in wrong:
        with pytest.raises(ValueError, match="target_dist"):
            D.range(3).rejection_resample(lambda _: 0, target)
    with pytest.raises(ValueError, match="classes"):
        D.range(3).rejection_resample(lambda _: 0, [1, 1], [1])
    with pytest.raises(ValueError, match="class 2"):
        list(D.range(3).rejection_resample(lambda x: x, [0.5, 0.5]))


@pytest.mark.sampled
@pytest.mark.parametrize("initial", [None, [0.7, 0.2, 0.1]])
def test_resampled_classes_come_as_often_as_wished(initial: list[float] | None) -> None:
    """Within chance, in every epoch, with tuples as elements; an element comes at most twice, once from each part."""
    classes = np.random.default_rng(3).choice(3, size=3000, p=(0.7, 0.2, 0.1))
    target = np.array([0.4, 0.3, 0.3])
    ds = D.range(3000).map(lambda x: (x, -x)).rejection_resample(lambda x, _: classes[int(x)], target, initial, seed=2)
    passes = []
    for _ in range(2):
        found = [(int(kind), int(x)) for kind, (x, _) in ds]
        assert all(classes[x] == kind for kind, x in found)
        assert max(Counter(x for _, x in found).values()) == 2
        share = np.bincount([kind for kind, _ in found], minlength=3) / len(found)
        assert (np.abs(share - target) < 5 * np.sqrt(0.25 / len(found)) + 0.02).all(), share
        passes.append(found)
    assert passes[0] != passes[1]


def test_a_resampled_dataset_is_pickled() -> None:
    """The copy gives the same elements and takes the same states, also those of before its functions had a module."""
    ds = D.range(4).repeat(100).rejection_resample(abs, [0.25] * 4, seed=4)
    again = pickle.loads(pickle.dumps(ds))
    lines = fingerprint(node_of("ds", ds))
    assert fingerprint(node_of("again", again)) == lines
    assert "map(function=resampled.<lambda>, rng=False)" in lines
    assert any(line.startswith("scan(") and line.endswith("function=_weights.seen)") for line in lines)
    whole = list(ds.iterator(epoch=0))
    with ds.iterator(epoch=0) as elements:
        begun, state = [next(elements) for _ in range(40)], elements.state_dict()
    assert begun + list(again.iterator(state=state)) == whole


def test_resampling_without_a_first_part_reads_once() -> None:
    """Where a class is not wished for nothing comes twice; where all is as wished everything comes once."""
    calls: list[int] = []

    def number(x: Any) -> int:
        calls.append(int(x))
        return int(x) % 2

    assert {int(kind) for kind, _ in D.range(50).rejection_resample(number, [0, 1], [0.5, 0.5])} == {1}
    assert calls == list(range(50))
    assert [int(x) for _, x in D.range(50).rejection_resample(number, [0.5, 0.5], [1, 1])] == list(range(50))


def test_old_names_make_the_same_plans() -> None:
    """Fused names, as methods and for apply, give what the steps by themselves give."""
    inner = D.range(3)

    def make(x: Any) -> ad.Dataset:
        return inner.map(lambda y: 10 * x + y)

    expected = ints(D.range(4).interleave(make, 2, 2))
    assert ints(D.range(4).parallel_interleave(make, 2, 2)) == expected
    assert ints(D.range(4).apply(ad.parallel_interleave(make, cycle_length=2, block_length=2))) == expected
    assert sorted(ints(D.range(4).parallel_interleave(make, 2, 2, sloppy=True, buffer_output_elements=1))) == sorted(
        expected
    )
    shuffled = [int(x) for x in D.range(9).shuffle(9, 3).repeat(2).iterator(epoch=0)]
    for ds in (D.range(9).shuffle_and_repeat(9, 2, 3), D.range(9).apply(ad.shuffle_and_repeat(9, 2, 3))):
        assert [int(x) for x in ds.iterator(epoch=0)] == shuffled
    batches = [[0, 1], [2, 3]]
    assert [b.tolist() for b in D.range(5).map_and_batch(lambda x: x, 2, drop_remainder=True)] == batches
    fused = ad.map_and_batch(lambda x: x, 2, num_parallel_batches=1, drop_remainder=True)
    assert [b.tolist() for b in D.range(5).apply(fused)] == batches
    with pytest.raises(ValueError, match="give one"):
        D.range(5).map_and_batch(lambda x: x, 2, num_parallel_batches=1, num_parallel_calls=2)


def test_misplaced_arguments_are_refused_at_once() -> None:
    """What could only fail while iterating fails where it is written."""
    five = D.range(5)
    with pytest.raises(ValueError, match="step"):
        D.range(0, 5, 0)
    with pytest.raises(ValueError, match="setup="):
        five.map(lambda x: x, setup=lambda: None)  # type: ignore[arg-type,return-value]  # must fail
    with pytest.raises(ValueError, match="executor="):
        five.map(later, executor="process")
    for method in (five.map, five.take_while, five.filter):
        with pytest.raises(TypeError, match="function"):
            method(5)  # type: ignore[arg-type]  # must fail
    for refused in (five.take_while, five.filter, lambda f: five.scan(0, f), lambda f: five.rejection_resample(f, [1])):
        with pytest.raises(TypeError, match="async"):
            refused(later)


def test_rows_of_byte_strings_and_texts_are_arrays_of_objects() -> None:
    """As TensorFlow's are arrays of strings; nothing is cut, and numpy's strings are plain ones."""
    rows = [[b"a\0", b""], [b"c", b"dd"]]
    for ds in (D.from_tensor_slices(rows), D.from_tensors(rows).unbatch()):
        found = list(ds)
        assert [(row.dtype, row.tolist()) for row in found] == [(np.dtype(object), row) for row in rows]
    assert list(D.from_tensor_slices(rows).unbatch()) == [b"a\0", b"", b"c", b"dd"]
    assert [type(text) for text in D.from_tensor_slices(np.array([["ab"], ["c"]])).unbatch()] == [str, str]
    padded = D.from_tensor_slices(rows).padded_batch(2, padded_shapes=[3], padding_values="x").get_single_element()
    assert padded.tolist() == [[b"a\0", b"", b"x"], [b"c", b"dd", b"x"]]
    with pytest.raises(ValueError, match="lists of one length"):
        D.from_tensor_slices([[1, 2], [3]])


def test_an_element_given_cannot_be_changed_through_the_array_it_was_made_of() -> None:
    """from_tensors copies arrays and gives them read-only; lists of numbers become arrays."""
    array = np.zeros(3)
    ds = D.from_tensors({"a": array, "b": [1, 2]})
    array[:] = 7
    element = next(iter(ds))
    assert element["a"].tolist() == [0, 0, 0]
    assert element["b"].dtype == np.int64
    with pytest.raises(ValueError, match="read-only"):
        element["a"][0] = 1


@ad.register_dataclass
@dataclasses.dataclass
class Sample:
    """A registered dataclass."""

    image: Any
    label: Any = 0


@dataclasses.dataclass
class Plain:
    """One that is not."""

    x: int


def sample(x: Any) -> Sample:
    """Makes one, in a worker too."""
    return Sample(np.full(3, x), {"id": int(x)})


@pytest.mark.sampled
@pytest.mark.parametrize("arguments", [{}, {"num_parallel_calls": 2}, {"num_parallel_calls": 2, "executor": "thread"}])
def test_registered_dataclasses_are_structure(arguments: dict[str, Any]) -> None:
    """Fields are batched one by one, and the class is made again: inline, in threads, in worker processes."""
    batch = next(iter(D.range(4).map(sample, **arguments).batch(2)))
    assert type(batch) is Sample
    assert batch.image.tolist() == [[0, 0, 0], [1, 1, 1]]
    assert batch.label["id"].tolist() == [0, 1]
    shuffled = list(D.range(4).map(sample, **arguments).shuffle(4, seed=1))
    assert sorted(one.label["id"] for one in shuffled) == [0, 1, 2, 3]


def test_dataclasses_that_are_not_registered_stay_objects() -> None:
    """They pass as they are; what cannot be made again from its fields is refused."""
    assert list(D.range(2).map(lambda x: Plain(int(x)))) == [Plain(0), Plain(1)]

    @dataclasses.dataclass
    class Hidden:
        x: int = dataclasses.field(init=False)

    for wrong in (Hidden, int, 5):
        with pytest.raises(TypeError):
            ad.register_dataclass(wrong)  # type: ignore[type-var]  # must fail
    assert list(D.zip(Sample(D.range(1), D.range(5, 6)))) == [Sample(0, 5)]
