"""Labels and reprs: one line that shows the steps, whatever they are, and no secret."""

from __future__ import annotations

import asyncdata as ad
from asyncdata.plan.label import steps_of
from asyncdata.planner.fingerprint import fingerprint


def test_a_repr_shows_the_steps_from_the_source_on() -> None:
    """Each step appears with what tells it from its like."""
    ds = ad.Dataset.list_files("gs://b/x-*.rec").interleave(ad.TFRecordDataset).shuffle(1000).batch(64)
    assert repr(ds) == "<Dataset list_files(gs://b/x-*.rec) → interleave(TFRecordDataset) → shuffle(1000) → batch(64)>"


def test_what_is_found_while_it_runs_is_called_so() -> None:
    """A buffer whose size is left to the library; a count of -1 means all, as in tf.data."""
    ds = ad.Dataset.range(4).take(-1).prefetch(ad.AUTOTUNE)
    assert repr(ds) == "<Dataset range(4) → take(-1) → prefetch(AUTOTUNE)>"


def test_branches_stand_in_brackets() -> None:
    """A step with several inputs shows what each of them is; the steps behind it follow."""
    numbers = ad.Dataset.range(4)
    both = ad.Dataset.zip(numbers.map(abs), ad.Dataset.from_tensors("x").repeat(3)).take(2)
    assert repr(both) == "<Dataset zip[range(4) → map(abs), from_tensors → repeat(3)] → take(2)>"
    many = ad.Dataset.sample_from_datasets([numbers] * 5)
    assert repr(many) == "<Dataset sample_from_datasets[range(4), range(4), range(4), … 5 in all]>"


def test_long_plans_are_shortened() -> None:
    """A plan of thousands of steps, or of long names, still fits on a screen."""
    ds = ad.Dataset.range(3)
    for _ in range(3000):
        ds = ds.map(abs)
    assert "… 2977 steps …" in repr(ds)
    assert len(repr(ds)) < 400
    assert len(repr(ad.TextLineDataset("x" * 10_000))) < 100
    deep = ad.Dataset.range(1)
    for _ in range(500):
        deep = ad.Dataset.zip(deep, deep)
    assert len(repr(deep)) < 200


def test_a_repr_shows_no_secret() -> None:
    """What signs a URL stays out of a repr."""
    ds = ad.TextLineDataset("https://me:hush@host/x.txt?X-Goog-Signature=secret")
    assert "hush" not in repr(ds)
    assert "secret" not in steps_of(ds._node)


def test_what_was_written_is_shown() -> None:
    """Not what it is made of; the plan that states are compared by is the same as before."""
    buckets = ad.Dataset.range(9).bucket_by_sequence_length(abs, [3], [2, 2])
    assert repr(buckets) == "<Dataset range(9) → bucket_by_sequence_length>"
    assert buckets._node.label == "group_by_window"
    assert not any("buckets" in line for line in fingerprint(buckets._node))
    resampled = ad.Dataset.range(9).rejection_resample(abs, [0.5, 0.5])
    assert repr(resampled).startswith("<Dataset rejection_resample[range(9) → ")
    assert resampled._node.label == "sample_from_datasets"
    assert repr(ad.TFRecordDataset(["a", "b"]).batch(2)) == "<Dataset TFRecordDataset(a, b) → batch(2)>"
    many = ad.TFRecordDataset([f"{number}" for number in range(24)])
    assert repr(many) == "<Dataset TFRecordDataset(0, 1, 2, … 24 in all)>"
    assert repr(ad.Dataset.zip((many, many))).count("TFRecordDataset(0, 1, 2") == 2
    apart = ad.Dataset.from_tensors("a").interleave(ad.TFRecordDataset)
    assert repr(apart) == "<Dataset from_tensors → interleave(TFRecordDataset)>"
