from __future__ import annotations

import re

import pytest
from fsspec.utils import glob_translate
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.errors import UnsupportedURLError
from asyncdata.storage.globs import compile_glob, expand_braces, has_wildcard, numbered, translate

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


def test_many_stars_in_a_row_are_as_two() -> None:
    """And take no longer: a search that tried all their shares of a name would not end."""
    assert translate("a***") == translate("a**")
    assert translate("a/***/b") == translate("a/**/b")
    assert translate("***") == translate("**")
    (pattern,) = compile_glob("*" * 500 + "x")
    assert not pattern.matches("a/" * 200)
    assert pattern.matches("a/" * 200 + "x")


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


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("x-{08..10}.rec", ["x-08.rec", "x-09.rec", "x-10.rec"]),
        ("{0..1}/a{1..2}", ["0/a1", "0/a2", "1/a1", "1/a2"]),
        ("x{3..1}", ["x3", "x2", "x1"]),
        ("x{0..10..5}", ["x0", "x5", "x10"]),
        ("x{10..1..-4}", ["x10", "x6", "x2"]),
        ("{-1..1}", ["-1", "0", "1"]),
        ("{098..101}", ["098", "099", "100", "101"]),
        ("{0..1}-{a,b}*", ["0-{a,b}*", "1-{a,b}*"]),
        ("{5..5}", ["5"]),
    ],
)
def test_ranges_enumerate_as_in_a_shell(pattern: str, names: list[str]) -> None:
    """Both ends are included, and leading zeros set the width."""
    found = numbered(pattern)
    assert found is not None
    assert found.patterns == names
    assert has_wildcard(pattern)


@pytest.mark.parametrize("pattern", ["x", "{a,b}", "{1}", "{1..}", "{1..b}", "{1...3}", "1..3"])
def test_what_is_no_range_is_left_alone(pattern: str) -> None:
    """Only two whole numbers with two dots between them are a range."""
    assert numbered(pattern) is None


@given(low=st.integers(0, 2000), count=st.integers(0, 300), width=st.integers(1, 5), tail=st.sampled_from(["", ".rec"]))
def test_a_covering_glob_matches_every_number(low: int, count: int, width: int, tail: str) -> None:
    """Where one glob covers a range it matches every name, and the tails of the names differ."""
    found = numbered(f"gs://b/x{{{low:0{width}d}..{low + count:0{width}d}}}{tail}")
    assert found is not None
    assert found.patterns == list(dict.fromkeys(found.patterns))
    if found.covering is None:
        assert len({len(name) for name in found.patterns}) > 1
        return
    (compiled,) = compile_glob(found.covering)
    assert all(compiled.matches(name) for name in found.patterns)
    assert len({name[-found.tail :] for name in found.patterns}) == len(found.patterns)


@pytest.mark.parametrize("pattern", ["{0..99999999}", "{0..1999}{0..1999}", "{1..999999999999999999}"])
def test_ranges_have_a_limit(pattern: str) -> None:
    """A slip of the pen must not fill the memory."""
    with pytest.raises(UnsupportedURLError, match="more than 1000000 files"):
        numbered(pattern)
