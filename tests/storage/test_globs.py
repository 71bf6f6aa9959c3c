from __future__ import annotations

import re

import pytest
from fsspec.utils import glob_translate
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.errors import UnsupportedURLError
from asyncdata.storage.globs import compile_glob, expand_braces, has_wildcard, translate

segment = st.text(alphabet="ab.-", min_size=1, max_size=3)
names = st.lists(segment, min_size=1, max_size=4).map("/".join)
pieces = st.sampled_from(["*", "?", "a", "b", ".", "-", "[ab]", "[!a]", "[a-b]", "[b-a]", "[", "]"])
pattern_segment = st.just("**") | st.lists(pieces, min_size=1, max_size=3).map("".join).filter(lambda s: "**" not in s)
patterns = st.lists(pattern_segment, min_size=1, max_size=4).map("/".join)


@given(pattern=patterns, name=names)
def test_translation_agrees_with_fsspec(pattern: str, name: str) -> None:
    """Without braces the language is fsspec's, except that a set never matches a slash."""
    ours = re.match(translate(pattern), name) is not None
    theirs = re.match(glob_translate(pattern), name) is not None
    if ours != theirs:
        assert "[!" in pattern, (pattern, name)


@given(pattern=patterns, name=names)
def test_matches_begin_with_the_literal_prefix(pattern: str, name: str) -> None:
    """Listing by prefix loses nothing, and a shallow pattern matches nothing deeper than its prefix."""
    (compiled,) = compile_glob(pattern)
    if compiled.matches(name):
        assert name.startswith(compiled.prefix)
        if compiled.is_shallow:
            assert "/" not in name[len(compiled.prefix) :]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a/*.rec", ["a/x.rec", "a/.rec", "a/x-1.rec"]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"]),
        ("a/**", ["a/b", "a/b/c", "a/b/c.rec"]),
        ("**/b.rec", ["b.rec", "a/b.rec", "a/c/b.rec"]),
        ("a/**.rec", ["a/x.rec", "a/b/x.rec"]),
        ("a{1,2}/x-?.{rec,gz}", ["a1/x-0.rec", "a2/x-9.gz"]),
        ("[0-9]*", ["0", "9x"]),
        ("a{b}", ["a{b}"]),
        ("x[", ["x["]),
        (r"a\*", [r"a\x", "a\\"]),
        ("ä?", ["äö"]),
    ],
)
def test_patterns_match_what_they_should(pattern: str, names: list[str]) -> None:
    """Examples of each wildcard."""
    for name in names:
        assert any(item.matches(name) for item in compile_glob(pattern)), name


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a/*.rec", ["a/b/x.rec", "a/x.rec.gz", "b/x.rec", "a/x.rec/", "za/x.rec"]),
        ("a/**/b", ["ab", "a/xb", "a/b/c"]),
        ("a/*", ["a", "a/", "a/b/c"]),
        ("a?c", ["a/c", "ac", "abbc"]),
        ("a[!b]c", ["a/c", "abc"]),
        ("a.b", ["axb"]),
        ("[b-a]", ["a", "b", "-"]),
    ],
)
def test_patterns_do_not_match_what_they_should_not(pattern: str, names: list[str]) -> None:
    """Examples of what a wildcard leaves out."""
    for name in names:
        assert not any(item.matches(name) for item in compile_glob(pattern)), name


def test_braces_expand_and_nest() -> None:
    """Alternatives multiply and nest; what is no group stays as it is."""
    assert expand_braces("a{b,c{d,e}}f{1,2}") == ["abf1", "abf2", "acdf1", "acdf2", "acef1", "acef2"]
    assert expand_braces("{,x}a") == ["a", "xa"]
    for text in ("", "{a}", "a}b{", "a,b", "{a", "a{b,c", "{{a}"):
        assert expand_braces(text) == [text]
    assert expand_braces("{{a,b}") == ["{a", "{b"]
    assert [item.text for item in compile_glob("{a,a,b}")] == ["a", "b"]


@given(st.text(alphabet="{},ab", max_size=14))
def test_braces_of_any_shape_are_expanded_to_the_end(text: str) -> None:
    """Expansion ends, and what it yields has nothing left to expand."""
    for item in expand_braces(text):
        assert expand_braces(item) == [item]


def test_a_pattern_with_too_many_alternatives_is_refused() -> None:
    """A short pattern cannot ask for an unbounded number of listings."""
    with pytest.raises(UnsupportedURLError, match="alternatives"):
        expand_braces("{a,b}" * 40)


def test_literal_patterns_are_known_as_such() -> None:
    """A name without wildcards is one object."""
    assert not has_wildcard("a/b{c}.rec")
    assert has_wildcard("a/{b,c}")
    assert has_wildcard("a?")
    assert compile_glob("a/b")[0].is_literal
    assert not compile_glob("a/*")[0].is_literal
