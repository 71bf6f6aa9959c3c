"""Sends an answer, and carries out the faults that strike on the way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from email.utils import formatdate
from typing import TYPE_CHECKING

from fake_gcs.errors import GCSError
from fake_gcs.http1 import Head, render_head
from fake_gcs.messages import Response, Span
from fake_gcs.objects.bodies import Source, pieces
from fake_gcs.objects.memory import MemoryBody
from fake_gcs.objects.preconditions import NOTHING
from fake_gcs.pacing import DebtClock
from fake_gcs.sending import BodySender

if TYPE_CHECKING:
    from fake_gcs.faults import Fault
    from fake_gcs.journal import Entry
    from fake_gcs.serving import Serving
    from fake_gcs.weather import Verdict
    from fake_gcs.wire import Wire

_JOINED_BYTES = 16 * 1024
_NO_BODY = frozenset({204, 304})


class ConnectionEnd(Exception):  # noqa: N818 -- not an error: the connection was ended on purpose
    """The weather has ended the connection."""


class Answering:
    """The sending half of one connection."""

    def __init__(self, serving: Serving, wire: Wire) -> None:
        self._serving = serving
        self._wire = wire
        self._loop = asyncio.get_running_loop()

    async def send(self, response: Response, head: Head, verdict: Verdict, entry: Entry | None) -> None:
        """Send an answer whole, or as far as the weather lets it."""
        body = response.body
        fault = verdict.fault if entry is not None and not entry.fault else None
        if fault is not None and isinstance(body, Iterator):
            body = b"".join(body)
        if fault is not None and isinstance(body, bytes):
            body = Span(MemoryBody(body), 0, len(body))
        headers = [*response.headers, ("Date", self._serving.date()), ("Server", "UploadServer")]
        if isinstance(body, Iterator):
            await self._send_pieces(response, headers, body, head, entry)
            return
        size = body.size if isinstance(body, Span) else len(body)
        if response.status not in _NO_BODY:
            headers.append(("Content-Length", str(size)))
        self._connection_header(headers, head, response)
        raw = render_head(response.status, headers)
        self._began(response.status, entry)
        if head.method == "HEAD" or response.status in _NO_BODY or not size:
            await self._put(raw)
            return
        if isinstance(body, bytes):
            await self._put(raw + body)
            if entry is not None:
                entry.sent = size
            return
        await self._send_span(raw, body, verdict, fault, entry)

    async def _put(self, data: bytes, *, more: bool = False) -> None:
        await self._wire.send_all(data, more=more, timeout_s=self._serving.limits.send_timeout_s)

    def _began(self, status: int, entry: Entry | None) -> None:
        if entry is not None:
            entry.status = status
            entry.first_byte_s = self._serving.clock()
            self._serving.journal.changed()

    @staticmethod
    def _connection_header(headers: list[tuple[str, str]], head: Head, response: Response) -> None:
        if response.close or not head.keep_alive:
            headers.append(("Connection", "close"))
        elif head.headers.get("connection", "").lower() == "keep-alive":
            headers.append(("Connection", "keep-alive"))

    async def _send_pieces(
        self,
        response: Response,
        headers: list[tuple[str, str]],
        body: Iterator[bytes],
        head: Head,
        entry: Entry | None,
    ) -> None:
        """A body of unknown size. When it turns out broken, the connection is cut so that the client notices."""
        headers.append(("Transfer-Encoding", "chunked"))
        self._connection_header(headers, head, response)
        self._began(response.status, entry)
        await self._put(render_head(response.status, headers))
        try:
            for piece in body:
                await self._put(b"%x\r\n" % len(piece) + piece + b"\r\n")
                if entry is not None:
                    entry.sent += len(piece)
        except EOFError:
            self._wire.close()
            raise ConnectionEnd from None
        await self._put(b"0\r\n\r\n")

    async def _send_span(
        self, raw: bytes, span: Span, verdict: Verdict, fault: Fault | None, entry: Entry | None
    ) -> None:
        try:
            source = span.body.open()
        except GCSError:
            self._wire.close()
            raise ConnectionEnd from None
        clock = DebtClock(verdict.bytes_per_s, self._loop.time()) if verdict.bytes_per_s else None
        try:
            start = span.start
            if fault is None and clock is None and span.size <= _JOINED_BYTES:
                first = source.read(start, span.size)
                await self._put(raw + bytes(first))
                start += len(first)
                if entry is not None:
                    entry.sent += len(first)
            else:
                await self._put(raw, more=fault is None)
            if fault is not None and entry is not None:
                start, clock = await self._struck(fault, source, span, clock, entry)
            if start < span.stop:
                await self._stretch(source, start, span.stop, clock, entry)
        except EOFError:
            self._wire.close()
            raise ConnectionEnd from None
        finally:
            source.close()

    async def _stretch(
        self, source: Source, start: int, stop: int, clock: DebtClock | None, entry: Entry | None
    ) -> None:
        sender = BodySender(self._loop, self._wire, self._serving.pacer, source, start, stop, clock)
        try:
            await sender.run(self._serving.limits.send_timeout_s)
        finally:
            if entry is not None:
                entry.sent += sender.offset - start

    # Faults.

    def note(self, fault: Fault, entry: Entry) -> None:
        """Write down that a fault is given."""
        entry.fault = fault.describe()
        self._serving.journal.changed()

    async def strike(self, fault: Fault, entry: Entry) -> None:
        """Carry out a fault at once: wait, or raise what ends the request."""
        self.note(fault, entry)
        if fault.kind == "status":
            after = () if fault.retry_after_s is None else (("Retry-After", f"{fault.retry_after_s:g}"),)
            raise GCSError(fault.status, "The weather is bad.", headers=after)
        if fault.kind == "expired-token":
            challenge = ("WWW-Authenticate", 'Bearer realm="https://accounts.google.com/", error="invalid_token"')
            raise GCSError(401, "Invalid Credentials", headers=(challenge,))
        if fault.kind == "stall":
            await self._silence(fault)
            return
        if fault.kind == "reset":
            self._wire.reset()
        else:
            self._wire.close()
        raise ConnectionEnd

    async def _silence(self, fault: Fault) -> None:
        seconds = fault.seconds[0] if isinstance(fault.seconds, tuple) else fault.seconds
        await self._wire.gone(seconds)
        if seconds is None:
            raise ConnectionEnd

    async def _struck(
        self, fault: Fault, source: Source, span: Span, clock: DebtClock | None, entry: Entry
    ) -> tuple[int, DebtClock | None]:
        """Send up to the place of the fault and let it strike; returns where and how sending goes on."""
        after = fault.after_bytes or 0
        if fault.after_fraction is not None:
            after = int(fault.after_fraction[0] * span.size)
        if after >= span.size:
            return span.start, clock
        place = span.start + after
        if place > span.start:
            await self._stretch(source, span.start, place, clock, entry)
        self.note(fault, entry)
        if fault.kind == "corrupt":
            flipped = bytes([source.read(place, 1)[0] ^ 0xFF])
            await self._put(flipped)
            entry.sent += 1
            return place + 1, clock
        if fault.kind == "replace":
            await self._replace(fault, span, entry)
            return place, clock
        if fault.kind == "drip":
            return place, DebtClock(fault.bytes_per_s, self._loop.time())
        if fault.kind == "stall":
            await self._silence(fault)
            return place, clock
        if fault.kind == "reset":
            self._wire.reset()
        else:
            self._wire.end_sending()
        raise ConnectionEnd

    async def _replace(self, fault: Fault, span: Span, entry: Entry) -> None:
        """Make a new generation of the object whose old one is being sent."""
        catalogue = self._serving.service.catalogue
        if entry.status not in (200, 206) or not entry.object:
            return  # what is being sent is not an object: an error, say
        version = catalogue.find(entry.bucket, entry.object)
        if version is None:
            return
        writer = catalogue.new_body()
        try:
            for piece in pieces(span.body):
                writer.write(bytes(piece).translate(_COMPLEMENT) if fault.content == "complement" else piece)
                await asyncio.sleep(0)
            checksums = writer.checksum.value()
            body = writer.finish()
        finally:
            writer.abort()
        catalogue.commit(
            entry.bucket, entry.object, body, checksums, dict(replace(version).settings), conditions=NOTHING
        )


_COMPLEMENT = bytes(255 - value for value in range(256))


def http_date() -> str:
    """Now, as an HTTP header value."""
    return formatdate(time.time(), usegmt=True)
