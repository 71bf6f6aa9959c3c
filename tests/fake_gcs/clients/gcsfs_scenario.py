"""gcsfs: every operation a data set's life needs. Run with the server's URL as the argument."""

from __future__ import annotations

import random
import sys

import fsspec
import gcsfs


def main(url: str) -> None:
    fs = gcsfs.GCSFileSystem(endpoint_url=url, token="anon")
    fs.mkdir("gcsfs-bucket")
    data = random.Random(1).randbytes(3 << 20)
    fs.pipe("gcsfs-bucket/d/small", b"abc")
    with fs.open("gcsfs-bucket/d/big \u00e9%2F", "wb", block_size=1 << 20) as file:
        for start in range(0, len(data), 100_000):
            file.write(data[start : start + 100_000])
    assert fs.cat("gcsfs-bucket/d/small") == b"abc"
    assert fs.cat("gcsfs-bucket/d/big \u00e9%2F") == data
    assert fs.cat_file("gcsfs-bucket/d/big \u00e9%2F", start=1000, end=2000) == data[1000:2000]
    assert fs.cat_ranges(["gcsfs-bucket/d/small"] * 2, [0, 1], [1, 3]) == [b"a", b"bc"]
    with fs.open("gcsfs-bucket/d/big \u00e9%2F", "rb", block_size=1 << 18) as file:
        file.seek(-5, 2)
        assert file.read() == data[-5:]
    assert fs.ls("gcsfs-bucket") == ["gcsfs-bucket/d"]
    assert fs.find("gcsfs-bucket") == ["gcsfs-bucket/d/big \u00e9%2F", "gcsfs-bucket/d/small"]
    assert fs.glob("gcsfs-bucket/**/sm*") == ["gcsfs-bucket/d/small"]
    info = fs.info("gcsfs-bucket/d/small")
    assert (info["size"], info["type"]) == (3, "file")
    fs.setxattrs("gcsfs-bucket/d/small", k="v")
    fs.invalidate_cache()
    assert fs.getxattr("gcsfs-bucket/d/small", "k") == "v"
    fs.copy("gcsfs-bucket/d/small", "gcsfs-bucket/copy")
    fs.mv("gcsfs-bucket/copy", "gcsfs-bucket/moved")
    fs.merge("gcsfs-bucket/merged", ["gcsfs-bucket/moved", "gcsfs-bucket/d/small"])
    assert fs.cat("gcsfs-bucket/merged") == b"abcabc"
    with fs.open("gcsfs-bucket/append", "ab") as file:
        file.write(b"1")
    try:
        fs.cat("gcsfs-bucket/none")
    except FileNotFoundError:
        pass
    else:
        raise AssertionError("a missing object was read")
    with fsspec.open("gs://gcsfs-bucket/d/small", endpoint_url=url, token="anon") as file:
        assert file.read() == b"abc"
    fs.rm("gcsfs-bucket", recursive=True)
    assert "gcsfs-bucket" not in [name.strip("/") for name in fs.ls("")]


if __name__ == "__main__":
    main(sys.argv[1])
