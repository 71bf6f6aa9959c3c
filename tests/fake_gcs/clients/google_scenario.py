"""google-cloud-storage: client, transfer_manager, batch. Run with the server's URL and a folder as the arguments."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from google.api_core.exceptions import NotFound, PreconditionFailed
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from google.cloud.storage import transfer_manager


def main(url: str, folder: Path) -> None:
    client = storage.Client(
        project="p",
        credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]  # as its package ships it
        client_options={"api_endpoint": url},
    )
    bucket = client.create_bucket("google-bucket")
    small = bucket.blob("dir/\u00fc n%2Fx")
    small.upload_from_string("hey", content_type="text/x", if_generation_match=0)
    assert small.download_as_bytes(checksum="crc32c") == b"hey"
    small.reload()
    assert (small.content_type, small.size) == ("text/x", 3)
    try:
        small.upload_from_string("again", if_generation_match=0)
    except PreconditionFailed:
        pass
    else:
        raise AssertionError("a precondition did not hold and nobody noticed")
    data = random.Random(1).randbytes(12 << 20)
    big = bucket.blob("big", chunk_size=1 << 20)
    big.upload_from_string(data)
    assert big.download_as_bytes() == data
    assert big.download_as_bytes(start=3, end=9) == data[3:10]
    with bucket.blob("stream").open("wb", chunk_size=256 << 10) as file:
        file.write(data[: 700 << 10])
    assert bucket.blob("stream").download_as_bytes(checksum="md5") == data[: 700 << 10]
    source, target = folder / "source", folder / "target"
    source.write_bytes(data)
    transfer_manager.upload_chunks_concurrently(
        str(source), bucket.blob("mpu"), chunk_size=5 << 20, max_workers=2, worker_type="thread"
    )
    transfer_manager.download_chunks_concurrently(
        bucket.blob("mpu"), str(target), chunk_size=3 << 20, max_workers=2, worker_type="thread"
    )
    assert target.read_bytes() == data
    copy = bucket.blob("copy")
    assert copy.rewrite(big)[0] is None
    bucket.rename_blob(bucket.copy_blob(big, bucket, "other"), "renamed")
    bucket.blob("composed").compose([small, big])
    assert bucket.blob("composed").download_as_bytes() == b"hey" + data
    with client.batch():
        for name in ("copy", "renamed", "composed"):
            bucket.blob(name).delete()
    names = [blob.name for blob in client.list_blobs("google-bucket", page_size=2)]
    assert names == ["big", "dir/\u00fc n%2Fx", "mpu", "stream"]
    small.metadata = {"k": "v"}
    small.patch()
    assert bucket.get_blob("dir/\u00fc n%2Fx").metadata == {"k": "v"}
    assert bucket.get_blob("none") is None
    try:
        bucket.blob("none").download_as_bytes()
    except NotFound:
        pass
    else:
        raise AssertionError("a missing object was read")
    bucket.versioning_enabled = True
    bucket.patch()
    small.upload_from_string("second")
    assert len(list(client.list_blobs("google-bucket", prefix="dir/", versions=True))) == 2
    bucket.delete(force=True)
    assert not client.bucket("google-bucket").exists()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
