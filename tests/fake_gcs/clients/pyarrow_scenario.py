"""pyarrow's GcsFileSystem (google-cloud-cpp). Run with ``host:port`` as the argument; uses the bucket ``bkt``."""

from __future__ import annotations

import random
import sys
from datetime import timedelta

import pyarrow.fs


def main(endpoint: str) -> None:
    fs = pyarrow.fs.GcsFileSystem(
        endpoint_override=endpoint,
        scheme="http",
        anonymous=True,
        project_id="p",
        retry_time_limit=timedelta(seconds=10),
    )
    data = random.Random(1).randbytes(12 << 20)
    with fs.open_output_stream("bkt/pa/x \u00fc") as out:
        out.write(data)
    with fs.open_input_stream("bkt/pa/x \u00fc") as stream:
        assert stream.read() == data
    with fs.open_input_file("bkt/pa/x \u00fc") as file:
        assert file.read_at(50, 100) == data[100:150]
        assert file.size() == len(data)
    fs.copy_file("bkt/pa/x \u00fc", "bkt/pa/y")
    fs.move("bkt/pa/y", "bkt/pa/z")
    listed = [info.path for info in fs.get_file_info(pyarrow.fs.FileSelector("bkt", recursive=True))]
    assert listed == ["bkt/pa/x \u00fc", "bkt/pa/z"], listed
    fs.delete_file("bkt/pa/z")
    fs.create_dir("bkt/dir/inner")
    fs.delete_dir("bkt/dir")
    fs.delete_dir_contents("bkt/pa")
    assert fs.get_file_info("bkt/none").type == pyarrow.fs.FileType.NotFound


if __name__ == "__main__":
    main(sys.argv[1])
