"""TensorFlow's own gs:// through the server as its HTTPS proxy; uses the bucket ``bkt``."""

from __future__ import annotations

import tensorflow


def main() -> None:
    path = "gs://bkt/dir/a b.txt"
    with tensorflow.io.gfile.GFile(path, "w") as file:
        file.write("hello\nworld\n")
    assert tensorflow.io.gfile.GFile(path).read() == "hello\nworld\n"
    assert tensorflow.io.gfile.listdir("gs://bkt/dir") == ["a b.txt"]
    assert tensorflow.io.gfile.glob("gs://bkt/*/*") == [path]
    lines = [line.numpy() for line in tensorflow.data.TextLineDataset(path)]
    assert lines == [b"hello", b"world"]
    tensorflow.io.gfile.copy(path, "gs://bkt/c")
    tensorflow.io.gfile.rename("gs://bkt/c", "gs://bkt/d")
    tensorflow.io.gfile.remove("gs://bkt/d")
    assert not tensorflow.io.gfile.exists("gs://bkt/d")


if __name__ == "__main__":
    main()
