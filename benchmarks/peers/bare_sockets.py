"""What client and server can do together. ``python bare_sockets.py JSON``.

Ranges are received into one buffer, over and over. Nothing is framed, verified, kept or tried again.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Final

from benchmarks.bare_client import BareClient
from benchmarks.measure import cpu_s

CONNECTIONS: Final = 96
_RANGE_BYTES: Final = 4 << 20


def main(objects: dict[str, Any]) -> None:
    """Reads every object (request target and size) of an endpoint, and prints what it took."""
    ranges = [(target, start) for target, size in objects["objects"] for start in range(0, size, _RANGE_BYTES)]
    cpu, began = cpu_s(os.getpid()), time.perf_counter()
    client = BareClient(objects["endpoint"], None, [memoryview(bytearray(_RANGE_BYTES))] * CONNECTIONS)
    client.read_all(iter(ranges))
    print(json.dumps({"wall_s": time.perf_counter() - began, "cpu_s": cpu_s(os.getpid()) - cpu}))
    client.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
