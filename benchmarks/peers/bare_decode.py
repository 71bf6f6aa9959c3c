"""Decoding alone, the limit for every reader: ``python bare_decode.py JSON``.

Each process decodes records that are in its memory already, and drops what it made. Pictures are not even put into
batches. Reading, framing, checksums and delivery cost nothing here.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

from benchmarks.measure import cpu_s
from benchmarks.peers.same_decoder import blocks, decoder, files, picture_decoder
from benchmarks.workloads import numbers_of


def decode_share(work: dict[str, Any], paths: list[str], ready: Barrier, results: Connection) -> None:
    """Decodes the records of some files; sends their number, their checksum, seconds and CPU seconds."""
    kind = work["kind"]
    batches = [[bytes(record) for record in block] for block in blocks(paths, work["batch"])]
    decode, one = decoder(kind), picture_decoder()
    decode(batches[0])
    count = checksum = 0
    ready.wait()
    began, cpu = time.perf_counter(), cpu_s(os.getpid())
    for batch in batches:
        if kind == "jpeg":
            checksum += sum(int(one(record)["label"]) for record in batch)
        else:
            checksum += int(numbers_of(decode(batch), kind).sum())
        count += len(batch)
    results.send((count, checksum, time.perf_counter() - began, cpu_s(os.getpid()) - cpu))


def main() -> None:
    """Decodes everything once and prints what it cost."""
    work = json.loads(sys.argv[1])
    context = multiprocessing.get_context("spawn")
    workers = work["workers"]
    ready = context.Barrier(workers)
    processes, pipes = [], []
    for number in range(workers):
        receiver, sender = context.Pipe(duplex=False)
        arguments = (work, files(work)[number::workers], ready, sender)
        processes.append(context.Process(target=decode_share, args=arguments))
        pipes.append(receiver)
        processes[-1].start()
        sender.close()
    shares = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
    records = sum(count for count, *_ in shares)
    # A reader gives work to whoever is idle. Rates are summed, so that a slower process does not make the limit lower.
    wall_s = records / sum(count / seconds for count, _, seconds, _ in shares)
    epoch = {
        "first_s": 0.0,
        "wall_s": wall_s,
        "first_records": 0,
        "records": records,
        "nbytes": 0,
        "cpu_s": sum(cpu for *_, cpu in shares),
        "parent_cpu_s": 0.0,
        "tasks": 0,
        "checksum": sum(checksum for _, checksum, *_ in shares),
    }
    print(json.dumps([epoch]))


if __name__ == "__main__":
    main()
