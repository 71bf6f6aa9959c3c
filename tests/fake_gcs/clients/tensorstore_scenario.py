"""tensorstore's gcs driver, pointed at the server by the environment; uses the bucket ``bkt``."""

from __future__ import annotations

import tensorstore


def main() -> None:
    store = tensorstore.KvStore.open({"driver": "gcs", "bucket": "bkt", "path": "ts/"}).result()
    store.write(b"a b", b"hello").result()
    store["x"] = b"y" * 100_000
    assert store["x"] == b"y" * 100_000
    assert sorted(store.list().result()) == [b"a b", b"x"]
    generation = store.read(b"x").result().stamp.generation
    assert store.write(b"x", b"new", if_equal=generation).result().generation != generation
    assert store.read(b"x").result().value == b"new"
    assert store.read(b"none").result().state == "missing"
    store.delete_range(tensorstore.KvStore.KeyRange()).result()
    assert store.list().result() == []


if __name__ == "__main__":
    main()
