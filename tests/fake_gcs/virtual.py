"""A server and its clients on one loop whose time is virtual: delays take no time, and are measured exactly."""

from __future__ import annotations

import asyncio
import re

from asyncdata.testing import run_virtual
from fake_gcs import Profile
from fake_gcs.journal import Journal
from fake_gcs.objects.catalogue import Catalogue
from fake_gcs.objects.memory import MemoryBacking
from fake_gcs.objects.preconditions import NOTHING
from fake_gcs.service import Service, ServiceOptions
from fake_gcs.serving import Limits, Serving, listen


def answered(profile: Profile, data: bytes, *lines: str, body: bytes = b"") -> tuple[list[bytes], float]:
    """The bodies of the answers to some requests at a time, and the seconds until the last one was whole.

    Args:
        profile: The weather.
        data: The object ``bkt/x``.
        lines: Method and path of each request.
        body: What each of them sends.
    """

    async def scenario() -> tuple[list[bytes], float]:
        catalogue = Catalogue(MemoryBacking())
        catalogue.create_bucket("bkt")
        writer = catalogue.new_body()
        writer.write(data)
        checksums = writer.checksum.value()
        catalogue.commit("bkt", "x", writer.finish(), checksums, {}, conditions=NOTHING)
        serving = Serving(Service(catalogue, ServiceOptions()), profile, Journal(), Limits(), None)
        listener = listen("127.0.0.1", 0)
        accepting = asyncio.create_task(serving.accept(listener, None))
        try:
            port = listener.getsockname()[1]
            bodies = await asyncio.gather(*(_ask(port, line, body) for line in lines))
            return list(bodies), asyncio.get_running_loop().time()
        finally:
            accepting.cancel()
            await asyncio.gather(accepting, return_exceptions=True)
            listener.close()
            serving.service.close()

    return run_virtual(scenario())


async def _ask(port: int, line: str, body: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"{line} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        length = re.search(rb"(?i)\ncontent-length: (\d+)", head)
        return await reader.readexactly(int(length[1])) if length else b""
    finally:
        writer.close()
        await writer.wait_closed()
