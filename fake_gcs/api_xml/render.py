"""XML answers."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape

from fake_gcs.messages import Response

Tree = list[tuple[str, "str | Tree"]]
"""Elements in order: a name with its text, or with the elements inside."""

_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


def xml_response(name: str, tree: Tree, status: int = 200) -> Response:
    """A document as the answer."""
    text = f'<?xml version="1.0" encoding="UTF-8"?><{name} xmlns="{_NAMESPACE}">{_render(tree)}</{name}>'
    return Response(status, [("Content-Type", "application/xml; charset=UTF-8")], text.encode("utf-8", "replace"))


def _render(tree: Tree) -> str:
    return "".join(f"<{name}>{_text(inner)}</{name}>" for name, inner in tree)


def _text(inner: str | Tree) -> str:
    if not isinstance(inner, str):
        return _render(inner)
    return escape(_FORBIDDEN.sub("\ufffd", inner), {"\r": "&#13;"})
