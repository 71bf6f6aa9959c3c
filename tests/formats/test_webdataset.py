from __future__ import annotations

import pytest

from asyncdata.formats.tar import part_of


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("a.jpg", ("a", "jpg")),
        ("a.seg.PNG", ("a", "seg.png")),
        ("dir/a.b/c.d.e", ("dir/a.b/c", "d.e")),
        ("./a.txt", ("./a", "txt")),
        ("a.", ("a", "")),
        ("noext", None),
        ("dir.x/noext", None),
        (".hidden", None),
        ("dir/.hidden", ("dir/", "hidden")),
        ("__meta__", None),
        ("__meta__/a.txt", None),
        ("dir/__meta__.txt", ("dir/__meta__", "txt")),
        ("__meta__.txt", ("__meta__", "txt")),
        ("", None),
    ],
)
def test_key_and_extension(name: str, part: tuple[str, str] | None) -> None:
    """The key ends at the first dot of the last component, as WebDataset splits names."""
    assert part_of(name) == part
