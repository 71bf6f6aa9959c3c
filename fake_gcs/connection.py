"""One connection: requests in, answers out, one after the other, with whatever the weather has for each.

    read head -> route -> weather -> read body -> wait for the first byte -> handler -> send

The decisions are elsewhere (``http1``, ``routing``, ``weather``, the handlers); here they are carried out.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from fake_gcs.answering import Answering, ConnectionEnd
from fake_gcs.byte_ranges import parse_content_range
from fake_gcs.control import PREFIX, answer_control
from fake_gcs.dispatch import form_of, refusal, understand
from fake_gcs.errors import GCSError
from fake_gcs.http1 import MAX_HEAD_BYTES, BadRequest, BodyFraming, Head, parse_head
from fake_gcs.journal import account_of
from fake_gcs.messages import Answer, Request, Response, Sink
from fake_gcs.pacing import DebtClock
from fake_gcs.routing import Route
from fake_gcs.weather import CALM, Asked, Verdict

if TYPE_CHECKING:
    from fake_gcs.faults import Fault
    from fake_gcs.journal import Entry
    from fake_gcs.serving import Serving
    from fake_gcs.wire import Wire

_LOG = logging.getLogger("fake_gcs")
_MAX_WHOLE_BYTES = 16 << 20
_DRAIN_BYTES = 1 << 20
_DRAIN_S = 2.0
_SLOW_WINDOW_BYTES = 256
_HEAD_END = b"\r\n\r\n"
_BEFORE = frozenset({"status", "reset", "stall", "truncate", "expired-token"})


def _carried(request: Request) -> tuple[int, float]:
    """Which bytes of an object a request uploads, as far as its head tells; all of them where it uploads none."""
    if request.operation != "storage.objects.insert":
        return 0, math.inf
    if header := request.header("content-range"):
        asked = parse_content_range(header)
        return asked.start or 0, asked.stop or 0
    return 0, math.inf if request.head.length is None else request.head.length


class Connection:
    """Serves one accepted connection until it ends."""

    def __init__(self, serving: Serving, wire: Wire, number: int) -> None:
        self._serving = serving
        self._wire = wire
        self._number = number
        self._answering = Answering(serving, wire)

    async def run(self) -> None:
        """Serve until the client leaves or an answer asks for the end. Never raises but on cancellation."""
        wire = self._wire
        try:
            wire.start()
            while await self._one_request():
                pass
        except (OSError, ConnectionEnd):
            pass
        except BadRequest as error:
            await self._refuse(error)
        except Exception:  # noqa: BLE001 -- one connection must not take the server down
            _LOG.exception("a connection failed")
        finally:
            if not wire.detached:
                wire.close()

    async def _refuse(self, error: BadRequest) -> None:
        try:
            answer = refusal(GCSError(error.status, error.message), "json")
            answer.close = True
            await self._answering.send(answer, Head("GET", "/", "", {}, keep_alive=False, length=0), CALM, None)
            await self._leave()
        except OSError:
            pass

    async def _leave(self) -> None:
        """End our side, and take what still comes for a moment: closing at once could lose the answer on its way."""
        self._wire.end_sending()
        end = asyncio.get_running_loop().time() + _DRAIN_S
        taken = 0
        while taken < _DRAIN_BYTES and not self._wire.ended:
            taken += len(self._wire.buffer)
            self._wire.buffer.clear()
            left = end - asyncio.get_running_loop().time()
            try:
                if left <= 0 or not await self._wire.more(left):
                    return
            except TimeoutError:
                return

    async def _read_head(self) -> Head | None:
        """The next request's head; None when the client left between requests."""
        buffer = self._wire.buffer
        limits = self._serving.limits
        started = 0.0
        searched = 0
        loop = asyncio.get_running_loop()
        while True:
            while not searched and buffer.startswith(b"\r\n"):
                del buffer[:2]
            end = buffer.find(_HEAD_END, searched)
            if 0 <= end <= MAX_HEAD_BYTES:
                head = parse_head(bytes(buffer[:end]))
                del buffer[: end + 4]
                return head
            if len(buffer) > MAX_HEAD_BYTES:
                raise BadRequest(431, "the request head is too long")
            searched = max(0, len(buffer) - 3)
            if buffer and not started:
                started = loop.time()
            wait_s = max(0.001, started + limits.head_timeout_s - loop.time()) if started else limits.idle_timeout_s
            try:
                alive = await self._wire.more(wait_s)
            except TimeoutError:
                if not buffer:
                    return None
                raise BadRequest(408, "the request head did not come in time") from None
            if not alive:
                return None

    async def _one_request(self) -> bool:
        head = await self._read_head()
        if head is None:
            return False
        serving = self._serving
        if head.method == "CONNECT":
            return await self._connect(serving)
        if head.path.startswith(PREFIX):
            return await self._control(head)
        target = f"{head.path}?{head.query}" if head.query else head.path
        entry = serving.journal.begin(head.method, target, self._number)
        framing = BodyFraming.of(head)
        try:
            response, verdict = await self._respond(head, framing, entry)
            # A client that waits to be told to go on sends nothing once it is refused.
            waits = not framing.done and head.headers.get("expect") is not None
            keep = head.keep_alive and not response.close and framing.done_or_small(_DRAIN_BYTES) and not waits
            if keep and not framing.done:
                await self._drain(framing)
            if not framing.done:
                response.close = True
            await self._answering.send(response, head, verdict, entry)
        except BadRequest as error:
            entry.status = error.status
            raise
        except OSError:
            entry.broken = True
            raise
        finally:
            entry.ended_s = serving.clock()
            serving.journal.changed()
        if not framing.done:
            await self._leave()
        return head.keep_alive and not response.close

    async def _connect(self, serving: Serving) -> bool:
        """Answer CONNECT, whatever its target: the server is the target."""
        if serving.proxy is None or self._wire.tls:
            raise BadRequest(405, "this is no proxy")
        await self._wire.send_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
        self._wire.detach()
        return False

    async def _control(self, head: Head) -> bool:
        framing = BodyFraming.of(head)
        try:
            body = await self._whole_body(framing, None)
            response = answer_control(self._serving, head.method, head.path, body)
        except GCSError as error:
            response = refusal(error, "json")
        response.close = response.close or not framing.done
        await self._answering.send(response, head, CALM, None)
        return head.keep_alive and not response.close

    async def _respond(self, head: Head, framing: BodyFraming, entry: Entry) -> tuple[Response, Verdict]:
        """The answer to a request and the weather it is sent in; refusals become answers."""
        form = form_of(head)
        verdict = CALM
        try:
            route, request = understand(head, self._serving.scheme(self._wire))
            form = route.form
            verdict = self._judge(route, request, entry)
            response = await self._carry_out(route, request, framing, verdict, entry)
            if route.body == "stream":
                verdict = replace(verdict, fault=None)  # Its place was counted in the bytes that were received.
        except GCSError as error:
            response = refusal(error, form, head_only=head.method == "HEAD")
        except (OSError, BadRequest, ConnectionEnd):
            raise
        except Exception:  # noqa: BLE001 -- a client gets 500, and the server goes on
            _LOG.exception("a handler failed: %s %s", head.method, head.path)
            response = refusal(GCSError(500, "Internal error"), form)
        return response, verdict

    def _judge(self, route: Route, request: Request, entry: Entry) -> Verdict:
        serving = self._serving
        headers = request.head.headers
        entry.operation = route.operation
        entry.bucket = route.params.get("bucket", "")
        entry.object = route.params.get("object") or request.query.get("name", "")
        entry.range = headers.get("range") or headers.get("content-range", "")
        entry.account = account_of(headers.get("authorization", ""))
        entry.test_id = headers.get("x-retry-test-id") or headers.get("x-fake-gcs-test-id", "")
        if route.operation.startswith(("retry_test.", "oauth2.")):
            return CALM
        media = request.head.method == "GET" and route.operation == "storage.objects.get" and route.form != "json"
        target = f"{entry.bucket}/{entry.object}" if entry.object else entry.bucket
        asked = Asked(route.operation, target, entry.range, entry.test_id, media)
        verdict = serving.weather.judge(asked, serving.clock())
        if entry.test_id:
            fault = serving.service.retry_tests.take(entry.test_id, route.operation, *_carried(request))
            if fault is not None:
                return Verdict(verdict.latency_s, verdict.bytes_per_s, fault)
        return verdict

    async def _carry_out(
        self, route: Route, request: Request, framing: BodyFraming, verdict: Verdict, entry: Entry
    ) -> Response:
        service = self._serving.service
        fault = verdict.fault
        before = fault is not None and fault.kind in _BEFORE and fault.after_bytes is None and not fault.after_fraction
        if before and fault is not None and fault.kind != "stall":
            await self._pause(verdict.latency_s)
            await self._answering.strike(fault, entry)
        await self._expect(request.head)
        if route.body == "stream":
            sink = cast("Sink", route.handler(service, request))
            try:
                await self._feed(sink, framing, verdict, entry)
                await self._first_byte(verdict, entry, stalled=before)
                return sink.finish()
            except BaseException:
                sink.abort()
                raise
        request.body = await self._whole_body(framing, entry)
        await self._first_byte(verdict, entry, stalled=before)
        answer = route.handler(service, request)
        return answer if isinstance(answer, Response) else await self._work_off(answer)

    async def _first_byte(self, verdict: Verdict, entry: Entry, *, stalled: bool) -> None:
        await self._pause(verdict.latency_s)
        if stalled and verdict.fault is not None:
            await self._answering.strike(verdict.fault, entry)

    @staticmethod
    async def _pause(seconds: float) -> None:
        if seconds > 0:
            await asyncio.sleep(seconds)

    @staticmethod
    async def _work_off(answer: Answer) -> Response:
        if not isinstance(answer, Generator):
            raise TypeError("a handler returned neither an answer nor work")
        while True:
            try:
                next(answer)
            except StopIteration as result:
                return cast("Response", result.value)
            await asyncio.sleep(0)

    async def _expect(self, head: Head) -> None:
        expected = head.headers.get("expect")
        if expected is None or head.length == 0:
            return
        if expected.lower() != "100-continue":
            raise GCSError(417, "Expectation Failed")
        await self._wire.send_all(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def _whole_body(self, framing: BodyFraming, entry: Entry | None) -> bytes:
        if framing.done:
            return b""
        if framing.remaining > _MAX_WHOLE_BYTES:
            raise GCSError(413, "The request body is too large.")
        body = bytearray()
        while piece := await self._next_piece(framing):
            body += piece
            if entry is not None:
                entry.received += len(piece)
            if len(body) > _MAX_WHOLE_BYTES:
                raise GCSError(413, "The request body is too large.")
        return bytes(body)

    async def _feed(self, sink: Sink, framing: BodyFraming, verdict: Verdict, entry: Entry) -> None:
        """Hand the body to a sink at its pace; a fault with ``after_bytes`` strikes when that many have been taken."""
        pacer, fault = self._serving.pacer, verdict.fault
        clock = DebtClock(verdict.bytes_per_s, asyncio.get_running_loop().time()) if verdict.bytes_per_s else None
        strike_at = fault.after_bytes if fault is not None else None
        if fault is not None and fault.kind == "corrupt":
            strike_at = strike_at or 0
        while piece := await self._next_piece(framing):
            if fault is not None and strike_at is not None and entry.received + len(piece) > strike_at:
                cut = max(0, strike_at - entry.received)
                sink.write(piece[:cut])
                entry.received += cut
                strike_at = None
                piece = await self._strike_upload(fault, piece[cut:], entry)
            sink.write(piece)
            entry.received += len(piece)
            if clock is not None or pacer.total is not None:
                pacer.charge(len(piece), clock)
                await self._pause(pacer.delay(clock))

    async def _strike_upload(self, fault: Fault, rest: bytes, entry: Entry) -> bytes:
        if fault.kind == "corrupt":
            self._answering.note(fault, entry)
            return bytes([rest[0] ^ 0xFF]) + rest[1:]
        if fault.kind in _BEFORE:
            await self._answering.strike(fault, entry)
        return rest

    async def _next_piece(self, framing: BodyFraming) -> bytes:
        """The next bytes of the body; empty at its end."""
        wire = self._wire
        window_s = self._serving.limits.body_timeout_s
        loop = asyncio.get_running_loop()
        started = loop.time()
        while True:
            if piece := framing.take(wire.buffer):
                wire.start()
                return piece
            if framing.done:
                return b""
            try:
                alive = await wire.more(max(0.001, started + window_s - loop.time()))
            except TimeoutError:
                raise BadRequest(408, "the request body did not come in time") from None
            if not alive:
                raise ConnectionResetError("the client left in the middle of a body")

    async def _drain(self, framing: BodyFraming) -> None:
        while await self._next_piece(framing):
            pass
