"""Which HTTP proxy, if any, a request to an origin uses. Pure.

An option names one for everything. Otherwise the environment decides, as in curl and Go's clients: ``http_proxy``,
``https_proxy`` and ``all_proxy`` by the scheme of the URL, ``no_proxy`` for exceptions. Capitals work too, except
``HTTP_PROXY`` in a CGI program, whose clients could set it. The environment's proxy is never used for ``localhost`` and
loopback addresses.

``no_proxy`` is a comma-separated list: ``*`` for everything, a domain for itself and everything below it (with or
without a leading dot), an address, or a network (``10.0.0.0/8``); ``:port`` may follow each.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from asyncdata.errors import UnsupportedURLError
from asyncdata.storage.urls import Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxies:
    """The rules. No field is shown in a repr: a proxy's URL may hold a password.

    Attributes:
        always: For every request; None to let the others decide.
        http: For ``http://`` URLs.
        https: For ``https://`` URLs.
        exceptions: ``no_proxy``.
    """

    always: str | None = None
    http: str | None = None
    https: str | None = None
    exceptions: str = ""

    def __repr__(self) -> str:
        chosen = [name for name in ("always", "http", "https", "exceptions") if getattr(self, name)]
        return f"Proxies({', '.join(chosen)})"

    def choose(self, origin: Origin) -> str | None:
        """The proxy's URL for requests to an origin; None for a direct connection.

        Raises:
            UnsupportedURLError: The environment names a proxy for it that cannot be used.
        """
        if self.always is not None:
            return self.always
        proxy = self.https if origin.tls else self.http
        if proxy is None or _is_loopback(origin.host) or self._is_exception(origin):
            return None
        return check_proxy(proxy)

    def _is_exception(self, origin: Origin) -> bool:
        host = origin.host.lower().rstrip(".")
        address = _address_of(host)
        for text in self.exceptions.split(","):
            entry = text.strip().lower()
            if not entry:
                continue
            if entry == "*":
                return True
            name, port = _split_port(entry)
            if port is not None and port != origin.port:
                continue
            if address is not None:
                if _covers(name, address):
                    return True
                continue
            domain = name.removeprefix("*").strip(".")
            if domain and (host == domain or host.endswith(f".{domain}")):
                return True
        return False


def check_proxy(value: object) -> str | None:
    """The option ``proxy``, or what the environment says; None when it is not set.

    Raises:
        UnsupportedURLError: Not ``http://host:port`` or ``https://host:port``.
    """
    if value is None or value == "":
        return None
    text = str(value)
    if "://" not in text:
        text = f"http://{text}"
    scheme, _, rest = text.partition("://")
    if scheme.lower() not in {"http", "https"} or not rest.strip("/"):
        raise UnsupportedURLError("a proxy must be http://host:port", url=text)
    try:
        parts = urlsplit(text)
        usable = bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        # What is no URL cannot be shown without its password. A slash in that has to be written %2F.
        raise UnsupportedURLError(
            "the proxy is not a URL: it must be http://host:port, where the host may follow a user name and password"
        )
    return text


def _split_port(entry: str) -> tuple[str, int | None]:
    """Splits ``host:80``; an IPv6 address is split only if it is in brackets."""
    if entry.startswith("["):
        inside, _, rest = entry[1:].partition("]")
        port = rest.removeprefix(":")
        return inside, int(port) if port.isascii() and port.isdigit() else None
    name, separator, port = entry.rpartition(":")
    if separator and ":" not in name and port.isascii() and port.isdigit():
        return name, int(port)
    return entry, None


def _address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _covers(network: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    try:
        return address in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def _is_loopback(host: str) -> bool:
    address = _address_of(host)
    return host.lower().rstrip(".") == "localhost" or (address is not None and address.is_loopback)
