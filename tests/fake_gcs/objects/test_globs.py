"""matchGlob."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_gcs.errors import GCSError
from fake_gcs.objects.globs import compile_glob
from tests.fake_gcs.asking import refusal_of


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("*.txt", ["a.txt", ".txt"], ["a/b.txt", "a.txt2"]),
        ("**.txt", ["a.txt", "a/b/c.txt"], ["a.tx"]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["ab", "a/xb"]),
        ("**/b", ["b", "a/b", "a/c/b"], ["ab"]),
        ("a?c", ["abc"], ["a/c", "ac"]),
        ("[a-c]x", ["ax", "cx"], ["dx", "x"]),
        ("[+--]x", ["+x", ",x", "-x"], [".x"]),
        ("[]a^&&-]x", ["]x", "ax", "^x", "&x", "-x"], ["bx"]),
        ("[!a]x", ["bx"], ["ax", "/x"]),
        ("{a,bc}.{x,y}", ["a.x", "bc.y"], ["b.x", "a.z"]),
        (r"\*", ["*"], ["a"]),
        ("a.b+(c)", ["a.b+(c)"], ["aXb+(c)"]),
        ("a,b", ["a,b"], ["a"]),
        ("a}", ["a}"], ["a"]),
    ],
)
def test_patterns(pattern: str, matching: list[str], others: list[str]) -> None:
    """Single stars stop at a slash, double ones do not; sets, alternatives and escapes work."""
    glob = compile_glob(pattern)
    assert [name for name in matching + others if glob.match(name)] == matching


@pytest.mark.parametrize("pattern", ["{a", "[a", "[", "x" * 2000, "[z-a]"])
def test_malformed_patterns_are_refused(pattern: str) -> None:
    """What is not balanced is 400."""
    with pytest.raises(GCSError) as caught:
        compile_glob(pattern)
    assert caught.value.status == 400


@given(st.text(alphabet="ab*?[]{},!^-\\/.", max_size=30))
def test_any_pattern_compiles_or_is_refused(pattern: str) -> None:
    """There is no third outcome."""
    assert refusal_of(lambda: compile_glob(pattern)) in {0, 400}
