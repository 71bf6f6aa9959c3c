"""What the survey of the source counts, on a house of a few lines."""

from __future__ import annotations

from pathlib import Path

from benchmarks.house import code_lines, concepts, findings, main, survey

SOURCE = '''"""Text."""

import os  # a comment


class Window:
    """More text."""

    limit = (
        1
    )
    """Of an attribute."""

    def __init__(self, a, b, *, c):
        self.a = """no
docstring"""
'''


def house(root: Path) -> Path:
    """Two packages, one of which imports from the other."""
    files = {
        "low/deep.py": SOURCE,
        "low/other.py": "class Window:\n    pass\n",
        "runtime/high.py": "from asyncdata.low.deep import Window\nfrom asyncdata.low import other\n",
        "runtime/other.py": "",
        "plan/family.py": "",
        "dataset/family.py": "",
        "runtime/lower/family.py": "",
        "runtime/near.py": "from asyncdata.runtime.high import Window\n",
    }
    for name, text in files.items():
        path = root / "asyncdata" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_only_code_counts() -> None:
    """Neither blank lines, nor comments, nor docstrings; a long string that is a value does."""
    assert code_lines(SOURCE) == 8
    assert code_lines("") == 0


def test_a_house_is_surveyed(tmp_path: Path) -> None:
    """Names that cross a package, constructors, names of two things (one family is one), and where modules lie."""
    modules = survey(house(tmp_path))
    assert concepts(modules) == {("asyncdata.low.deep", "Window"), ("asyncdata.low.other", "")}
    found = dict(findings(modules))
    assert found["largest constructor"][0] == "3 asyncdata.low.deep.Window"
    assert found["class names of two things"] == ["Window (asyncdata.low.deep, asyncdata.low.other)"]
    assert [name.rpartition(".")[2] for name in found["modules directly in runtime"]] == ["high", "near", "other"]
    assert "asyncdata.low.other (2)" in found["files under 60 lines with one importer"]
    assert found["modules of one name"] == ["other (asyncdata.low.other, asyncdata.runtime.other)"]
    assert main([str(tmp_path)]) == 0
