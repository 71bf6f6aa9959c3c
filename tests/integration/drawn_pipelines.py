"""Draws pipelines of the whole vocabulary: any source, any steps around and inside of others, any options."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.integration.described_pipelines import SOURCES, STEPS
from tests.integration.written_formats import Files
from tests.referee import pipelines
from tests.referee.pipelines import BYTES, INT, Draw, Kind, Plan, kinds_of

TEXT: Kind = ("text", ())
SEED = st.sampled_from([None, 1, 2])
SIZE = st.integers(1, 4)
COUNT = st.sampled_from([25, 9, 40, 3, 1, 0])
PARALLEL = st.sampled_from([None, 2])
AHEAD = {"prefetch", "map", "noisy", "later", "picky", "inside", "interleave", "map_and_batch"}
"""Steps that work ahead of what is taken from them, or in another order."""
ANY_ORDER = ("vectorized", "picky", "choosy", "mixed", "shuffle_and_repeat", "ignore_errors")
"""Steps that make the same of elements in whatever order they come."""


class Drawing:
    """Draws one pipeline.

    Args:
        draw: Of hypothesis.
        files: What sources can read.
        fixed: Whether files stay as they are, and none are written.

    Attributes:
        stores: How many of its steps keep elements in files.
        changes: Whether objects are replaced while it reads them.
        ops: Every source and step that was drawn.
    """

    def __init__(self, draw: Draw, files: Files, *, fixed: bool = False) -> None:
        self._draw = draw
        self._fixed = fixed
        self._files = files
        self._handles = 0
        self._may_store = not fixed
        self.stores = 0
        self.changes = False
        self.ops: list[str] = []

    def one_of(self, *values: Any) -> Any:
        """One of them."""
        return self._draw(st.sampled_from(values))

    # --- sources

    def source(self) -> tuple[Plan, Kind]:
        """A source of any kind."""
        op = self.one_of(
            "referee's",
            "referee's",
            *["changing"] * (not self._fixed),
            *(name for name in SOURCES if name != "element"),
        )
        if op == "referee's":
            plan, kind = pipelines.sources(self._draw, self._files)
        elif op == "changing":
            self.changes = True
            op = self.one_of("csv", "json", "gz", "tar", "parquet", "lines", "records")
            plan, kind = self.of_files(op, [f"gs://changing/{i}.{op}" for i in self.one_of([0], [0, 1], [1, 1])])
        else:
            plan, kind = self._own_source(op)
        self.ops.append(plan["op"])
        return plan, kind

    def _own_source(self, op: str) -> tuple[Plan, Kind]:
        draw = self._draw
        if op == "generator":
            every = self.one_of(None, 1, 3, 1000)
            return {"op": op, "count": draw(COUNT), "every": every, "is_async": draw(st.booleans())}, INT
        if op == "random":
            return {"op": op, "count": draw(COUNT), "seed": draw(SEED), "again": self.one_of(None, True)}, INT
        if op in ("listed", "manifest", "directory"):
            plan = {"op": op, "files": self._files[op], "shuffle": draw(st.booleans()), "seed": draw(SEED)}
            if op == "directory":
                size = self.one_of(None, 2, 5)
                kind: Kind = ["tuple", [BYTES, INT]]
                seed = self.one_of(1, 2)  # without it, every process has another order
                return {**plan, "size": size, "seed": seed}, pipelines.stacked(kind) if size else kind
            return {**plan, "cycle": draw(SIZE), "block": draw(SIZE)}, BYTES
        chosen = [self._files[op][i] for i in draw(st.lists(st.sampled_from([0, 3, 2, 1, -1]), min_size=1, max_size=4))]
        return self.of_files(op, chosen)

    def of_files(self, op: str, chosen: list[str]) -> tuple[Plan, Kind]:
        """The source of some files."""
        draw = self._draw
        plan: Plan = {"op": op, "files": chosen}
        if op == "whole":
            with_url = draw(st.booleans())
            return {**plan, "with_url": with_url}, ["tuple", [TEXT, BYTES]] if with_url else BYTES
        plan["reads"] = self.one_of(None, 1, 2, 3)
        if op == "csv":
            count = self.one_of(2, 1)
            return {**plan, "columns": count}, ["tuple", [INT, BYTES][:count]]
        if op == "json":
            return {**plan, "parallel": draw(PARALLEL)}, ["dict", {"n": INT, "t": TEXT}]
        if op == "tar":
            return plan, ["dict", {"__key__": TEXT, "cls": BYTES, "txt": BYTES}]
        if op == "parquet":
            kinds = {"n": INT, "t": TEXT, "v": ("int", (None,))}
            columns = self.one_of(None, ["v", "n"], ["t"], ["v"])
            kind = ["dict", {name: kinds[name] for name in columns or kinds}]
            return {**plan, "columns": columns, "without": draw(st.integers(0, 30))}, kind
        return plan, BYTES

    def _of_element(self, kind: Kind, outer: Kind | None) -> tuple[Plan, Kind]:
        """The source of an inner dataset: of the element, or any other."""
        whats = ["count", "repeated", "file", "generated", "any"] + ["outer"] * (outer is not None)
        what = self.one_of(*whats)
        if what == "any":
            return self.source()
        plan: Plan = {"op": "element", "what": what}
        if what == "file":
            return {**plan, "files": self._files["records"]}, BYTES
        if what == "generated":
            return {**plan, "count": self._draw(COUNT), "every": self.one_of(None, 2), "is_async": False}, INT
        return plan, {"count": INT, "repeated": kind, "outer": outer}[what]

    # --- steps

    def step(self, plan: Plan, kind: Kind) -> tuple[Plan, Kind]:
        """One step more."""
        names = [*STEPS, "ragged_batch", "drawn from", "zip", "concatenate", "choose", "ignore_errors"]
        fitting = [name for name in names if self._fits(name, kind)]
        if self._draw(st.booleans()):
            op = self.one_of(*fitting)
            self.ops.append(op)
            return self._own_step(op, plan, kind)
        while True:
            out, after = pipelines.step(self._draw, plan, kind, self._files)
            if out["op"] not in ("zip", "concatenate", "choose"):  # they are drawn here
                self.ops.append(out["op"])
                return out, after

    def _fits(self, op: str, kind: Kind) -> bool:
        if op in ("store", "snapshot"):
            return self._may_store
        parts = kinds_of(kind)
        if op in ("vectorized", "declared"):
            return bool(kind == INT)
        if op == "dense":
            return pipelines.is_leaf(kind) and kind[0] == "ragged" and len(kind[1]) == 1
        if op in ("ragged_batch", "bucket_by_length"):
            return all(leaf[0] != "ragged" for leaf in parts)
        return True

    def _own_step(self, op: str, plan: Plan, kind: Kind) -> tuple[Plan, Kind]:  # noqa: C901, PLR0911 -- a step each
        draw = self._draw
        out: Plan = {"op": op, "input": plan}
        if op in ("noisy", "later", "picky"):
            out["parallel"] = draw(PARALLEL)
            if op != "noisy":
                return out, kind
            places = ["async", "thread", "process"] if out["parallel"] else ["async", None]
            return {**out, "executor": self.one_of(*places)}, ["tuple", [kind, INT]]
        if op in ("store", "snapshot"):
            self.stores += 1
            out["name"] = f"{op}{self.stores}"
            if op == "store":
                return out, kind
            reader = self.one_of(None, None, "in turn", "shuffled")
            out |= {"reader": reader, "shards": draw(st.booleans()), "compression": self.one_of(None, "GZIP")}
            return out, kind
        if op == "inside":
            return self._inside(out, kind)
        if op in ("drawn from", "zip", "concatenate", "choose"):
            return self._joined(op, plan, kind)
        if op == "rejection_resample":
            initial = self.one_of(None, [0.4, 0.3, 0.3])
            out |= {"target": self.one_of([0.2, 0.3, 0.5], [0.0, 0.5, 0.5]), "initial": initial, "seed": draw(SEED)}
            return out, ["tuple", [INT, kind]]
        if op in ("mixed", "shuffle_and_repeat"):
            out |= {"size": draw(st.integers(1, 20)), "seed": draw(SEED)}
            out |= {"reshuffle": self.one_of(None, False)} if op == "mixed" else {"count": self.one_of(2, 3)}
            return out, kind
        if op == "map_and_batch":
            out |= {"size": draw(SIZE), "drop": draw(st.booleans()), "parallel": draw(PARALLEL)}
            return out, pipelines.stacked(kind)
        if op == "ragged_batch":
            out |= {"batch_size": draw(SIZE), "drop_remainder": draw(st.booleans())}
            return out, pipelines.changed(kind, lambda leaf: ("ragged" if leaf[1] else leaf[0], (None,)))
        if op == "declared":
            return {**out, "count": self.one_of(12, 12, 12, 11, 13)}, kind
        if op == "bucket_by_length":
            return {**out, "drop": draw(st.booleans())}, pipelines.RESULTS["padded_batch"](kind)
        if op == "by_key":
            return {**out, "size": draw(SIZE)}, kind
        if op == "dense":
            return out, ("int", (None, None))
        return out, kind

    def _inside(self, out: Plan, kind: Kind) -> tuple[Plan, Kind]:
        draw = self._draw
        out |= {"how": self.one_of("flat_map", "interleave", "parallel_interleave"), "outer": None}
        out |= {"cycle": draw(SIZE), "block": draw(SIZE)}
        outer_kind = None
        if draw(st.booleans()):
            outer, outer_kind = self.pipeline(2)
            out["outer"] = _with_any_generator(outer)
        may_store, self._may_store = self._may_store, self._may_store and out["how"] == "flat_map"
        inner, after = self._of_element(kind, outer_kind)
        for _ in range(draw(st.integers(0, 3))):
            inner, after = self.step(inner, after)
        self._may_store = may_store
        return {**out, "inner": inner}, after

    def _joined(self, op: str, plan: Plan, kind: Kind) -> tuple[Plan, Kind]:
        """The pipeline joined with others, of its own kind where it must be, also with itself."""
        draw = self._draw
        inputs = [plan]
        for _ in range(1 if op in ("zip", "concatenate") else draw(st.integers(1, 2))):
            how = self.one_of("itself", "twin", "other")
            if how == "other" and op == "zip":
                other, after = self.pipeline(2)
                return {"op": op, "inputs": [plan, other], "as_dict": False}, ["tuple", [kind, after]]
            if how == "other" and kind in (INT, BYTES):
                inputs.append(pipelines.sources(draw, self._files, only=kind)[0])
            elif how == "itself":
                if "handle" not in inputs[0]:
                    self._handles += 1
                    inputs[0] = {**plan, "handle": self._handles}
                inputs.append({"op": "skip", "input": inputs[0], "count": draw(st.integers(0, 3))})
            else:
                inputs.append({"op": "skip", "input": self._twin(plan), "count": draw(st.integers(0, 3))})
        out: Plan = {"op": op, "inputs": inputs}
        if op == "zip":
            return {**out, "as_dict": True}, ["dict", {"b": kind, "a": kind}]
        if op == "concatenate":
            return out, kind
        if op == "choose":
            choices = draw(st.lists(st.integers(0, len(inputs) - 1), min_size=1, max_size=12))
            return {**out, "choices": choices, "stop": draw(st.booleans())}, kind
        weights = [0.5, 0.3, 0.2][: len(inputs)]
        out |= {"weights": weights, "by_dataset": draw(st.booleans()), "seed": draw(SEED), "stop": draw(st.booleans())}
        return {**out, "again": self.one_of(None, True)}, kind

    def _twin(self, plan: Any) -> Any:
        """The same pipeline, which keeps its elements elsewhere."""
        if isinstance(plan, list):
            return [self._twin(each) for each in plan]
        if not isinstance(plan, dict):
            return plan
        twin = {key: self._twin(value) for key, value in plan.items() if key != "handle"}
        if "name" in twin:
            self.stores += 1
            twin["name"] = f"twin{self.stores}"
        return twin

    def pipeline(self, depth: int) -> tuple[Plan, Kind]:
        """A source and up to so many steps."""
        plan, kind = self.source()
        for _ in range(self.one_of(*range(depth, 0, -1))):
            plan, kind = self.step(plan, kind)
        return plan, kind

    def case(self, depth: int = 5) -> Plan:
        """A pipeline with options."""
        plan, _ = self.pipeline(depth)
        options: dict[str, Any] = {"seed": self.one_of(None, 7)}
        if self.one_of("no", "chunks") == "chunks":
            options["chunk_bytes"] = 4096
        if {"picky", "choosy", "damaged"} & set(self.ops):
            # Of what works ahead, how much is skipped before the end is a matter of time.
            quota = None if AHEAD & set(self.ops) else self.one_of(None, 2, 9)
            options["errors"] = self.one_of({"max_skipped": quota}, {"max_skipped": quota}, None)
        if self.changes:
            options["on_change"] = "restart"
        epoch = self.one_of(0, 0, 1)
        stores, changes = self.stores, self.changes
        return {"plan": plan, "options": options, "cut": True, "stores": stores, "changes": changes, "epoch": epoch}

    def unordered_case(self) -> Plan:
        """A pipeline some of whose steps pass elements on as they are ready, before steps that do not mind."""
        plan, kind = self.pipeline(2)
        mixing = ("noisy", "later", "inside")
        for name in (self.one_of(*mixing), *self._draw(st.lists(st.sampled_from([*mixing, *ANY_ORDER]), max_size=3))):
            if self._fits(name, kind):
                self.ops.append(name)
                plan, kind = self._own_step(name, plan, kind)
            if name in mixing and plan.get("how") != "flat_map":
                plan["unordered"] = True
        options = {"seed": 7, "errors": {"max_skipped": None}}
        epoch = self.one_of(0, 0, 1)
        return {"plan": plan, "options": options, "cut": False, "stores": 0, "changes": False, "epoch": epoch}


def _with_any_generator(plan: Any) -> Any:
    """The pipeline when several of its iterators may run at a time: one object cannot tell where each of them is."""
    if isinstance(plan, list):
        return list(map(_with_any_generator, plan))
    if not isinstance(plan, dict):
        return plan
    return {key: None if key == "every" else _with_any_generator(each) for key, each in plan.items()}


@st.composite
def cases(draw: Draw, files: Files) -> Plan:
    """A pipeline of any kind, with options."""
    return Drawing(draw, files).case()


def referee_cases(files: Files) -> st.SearchStrategy[Plan]:
    """A pipeline of those that TensorFlow has, too."""
    rest = {"options": {"seed": None}, "cut": True, "stores": 0, "changes": False, "epoch": 0}
    return pipelines.plans(files).map(lambda drawn: {"plan": drawn[0], **rest})


@st.composite
def unordered_cases(draw: Draw, files: Files) -> Plan:
    """A pipeline without a fixed order, with options."""
    return Drawing(draw, files, fixed=True).unordered_case()
