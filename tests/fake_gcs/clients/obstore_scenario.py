"""obstore (Rust's object_store), a strict reader of XML answers. Run with the server's URL as the argument.

A store needs its bucket to exist: the scenario uses ``bkt``.
"""

from __future__ import annotations

import json
import random
import sys

import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import GCSStore


def main(url: str) -> None:
    account = {"gcs_base_url": url, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    store = GCSStore("bkt", service_account_key=json.dumps(account), client_options={"allow_http": True})
    data = random.Random(1).randbytes(12 << 20)
    for name in ("o/1", "o/2", "o/p/3", "top \u00e9"):
        obstore.put(store, name, name.encode())
    assert bytes(obstore.get(store, "top \u00e9").bytes()) == "top \u00e9".encode()
    listed = [item["path"] for item in obstore.list(store).collect()]
    assert listed == ["o/1", "o/2", "o/p/3", "top \u00e9"]
    level = obstore.list_with_delimiter(store, "o")
    assert (level["common_prefixes"], [item["path"] for item in level["objects"]]) == (["o/p"], ["o/1", "o/2"])
    assert [item["path"] for item in obstore.list(store, offset="o/1").collect()] == ["o/2", "o/p/3", "top \u00e9"]
    obstore.copy(store, "o/1", "o/copy")
    for action in (
        lambda: obstore.copy(store, "o/1", "o/copy", overwrite=False),
        lambda: obstore.put(store, "o/1", b"x", mode="create"),
    ):
        try:
            action()
        except AlreadyExistsError:
            pass
        else:
            raise AssertionError("an object was overwritten that must not be")
    obstore.rename(store, "o/copy", "o/renamed")
    head = obstore.head(store, "o/renamed")
    assert (head["size"], head["version"] is not None) == (3, True)
    obstore.put(store, "multi", data, use_multipart=True, chunk_size=5 << 20)
    assert bytes(obstore.get(store, "multi").bytes()) == data
    assert bytes(obstore.get_range(store, "multi", start=4, end=99)) == data[4:99]
    parts = obstore.get_ranges(store, "multi", starts=[1, 9 << 20], ends=[5, (9 << 20) + 10])
    assert [bytes(part) for part in parts] == [data[1:5], data[9 << 20 : (9 << 20) + 10]]
    assert bytes(obstore.get(store, "multi", options={"range": {"suffix": 7}}).bytes()) == data[-7:]
    etag = obstore.head(store, "o/1")["e_tag"]
    assert bytes(obstore.get(store, "o/1", options={"if_match": etag}).bytes()) == b"o/1"
    obstore.delete(store, ["o/1", "o/2", "o/p/3", "o/renamed", "multi", "top \u00e9"])
    try:
        obstore.head(store, "o/1")
    except FileNotFoundError:
        pass
    else:
        raise AssertionError("a deleted object is still there")


if __name__ == "__main__":
    main(sys.argv[1])
