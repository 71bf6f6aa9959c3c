"""Writes objects through the HTTP API of a GCS server, several at a time, with retries."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, Self
from urllib.parse import quote

import aiohttp

_ATTEMPTS: Final = 6
_AT_A_TIME: Final = 4
_LATER: Final = frozenset({408, 429, 500, 502, 503, 504})


class Uploader:
    """One session; use it as an async context manager.

    Args:
        endpoint: Base URL of the server.
        bucket: Where objects go.
    """

    def __init__(self, endpoint: str, bucket: str) -> None:
        self._url = f"{endpoint}/upload/storage/v1/b/{quote(bucket, safe='')}/o"
        self._turns = asyncio.Semaphore(_AT_A_TIME)
        self.retries = 0

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60, sock_read=5))
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self._session.close()

    async def put(self, name: str, data: bytes) -> None:
        """Writes one object.

        Raises:
            OSError: The server refused it, or failed too often.
        """
        query: Mapping[str, str] = {"uploadType": "media", "name": name}
        async with self._turns:
            failure = ""
            for attempt in range(_ATTEMPTS):
                if attempt:
                    self.retries += 1
                    await asyncio.sleep(0.1 * 2**attempt)
                try:
                    async with self._session.post(self._url, params=query, data=data) as response:
                        if response.status == 200:
                            return
                        failure = f"status {response.status}: {(await response.text())[:200]}"
                        if response.status not in _LATER:
                            break
                except (aiohttp.ClientError, TimeoutError) as error:
                    failure = f"{type(error).__name__}: {error}"
            raise OSError(f"{name} could not be uploaded: {failure}")
