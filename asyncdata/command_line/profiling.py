"""``asyncdata profile``: iterates over files or a dataset of the user's with a pretended training step, and reports."""

from __future__ import annotations

import argparse
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from asyncdata.command_line.measured_datasets import (
    add_measured_arguments,
    ending_at,
    measured_dataset,
    number_above,
    running_user_code,
)
from asyncdata.command_line.result_printer import OK, ResultPrinter, UsageError
from asyncdata.dataset.dataset import Dataset
from asyncdata.observe.plain import finite
from asyncdata.observe.profile import profile
from asyncdata.observe.progress import Display, Pace
from asyncdata.observe.stopwatch import clock
from asyncdata.options import Options
from asyncdata.replacing import replacing
from asyncdata.runtime.life.profile_socket import MOST_S, ask, sockets_of

HELP: Final = "find out what limits a pipeline, and write a report"
_MOST_STEP_MS: Final = 3_600_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that only this command has."""
    add_measured_arguments(parser, seconds=30, may_be_none=True)
    pid = "ask this running program, which has Options(profile_socket=True), instead of iterating"
    parser.add_argument("--pid", type=int, metavar="PID", help=pid)
    parser.add_argument(
        "--out", default="profile.html", type=_out, metavar="FILE", help=".html or .json (default: profile.html)"
    )
    parser.add_argument("--trace", type=_trace, metavar="FILE", help="also write a trace for Perfetto, in .json")
    step = "pretend that a training step takes so long, for each element (default: 0)"
    step_ms = number_above("--step-ms", least=0, most=_MOST_STEP_MS)
    parser.add_argument("--step-ms", type=step_ms, default=0.0, metavar="MS", help=step)


def _out(text: str) -> str:
    if not text.endswith((".html", ".json")):
        raise argparse.ArgumentTypeError(f"{text!r} ends in neither .html nor .json")
    return text


def _trace(text: str) -> str:
    if not text.endswith(".json"):
        raise argparse.ArgumentTypeError(f"{text!r} does not end in .json")
    return text


def run(arguments: argparse.Namespace, options: Options, results: ResultPrinter, display: Display) -> int:
    """Iterates, or asks a running program, and writes what was recorded."""
    if arguments.pid is None and not arguments.url:
        raise UsageError("give URLs or module:function, or --pid of a running program")
    if arguments.pid is not None and arguments.url:
        raise UsageError("give URLs or module:function, or --pid of a running program, not both")
    if arguments.pid is not None and arguments.trace is not None:
        raise UsageError("--trace records a pipeline that this command runs, not one of --pid")
    if arguments.pid is not None:
        if arguments.seconds > MOST_S:
            raise UsageError(f"--pid records for {MOST_S} seconds at most, not {arguments.seconds:g}")
        return _ask(arguments, results)
    try:
        recorded = profile(arguments.out, trace=arguments.trace or False)
    except ValueError as error:
        raise UsageError(str(error)) from None
    dataset = measured_dataset(arguments, options, results, display).with_options(options)
    files = {"report": os.path.abspath(arguments.out)}
    if arguments.trace is not None:
        files["trace"] = os.path.abspath(arguments.trace)
    before = {name: _version(path) for name, path in files.items()}
    try:
        with running_user_code(), recorded:
            _iterate(dataset, arguments, display)
    except BaseException:
        display.close()
        _name({name: path for name, path in files.items() if _version(path) != before[name]}, results)
        raise
    display.close()
    report = recorded.report()
    for line in (*str(report).splitlines(), ""):
        results.say(line)
    _name(files, results)
    results.document(source=arguments.url, profile=finite(report.document()))
    return OK


def _iterate(dataset: Dataset, arguments: argparse.Namespace, display: Display) -> None:
    """Takes elements, with the pretended training step behind each, until they or the time are over."""
    step = threading.Event()  # never set: waiting for it leaves processor and interpreter to others, as a device does
    pace = Pace(clock())
    until = pace.began + arguments.seconds
    for _ in range(arguments.epochs):
        if clock() >= until:
            break
        with dataset.iterator() as elements, ending_at(until, elements):
            for _ in elements:
                left_s = until - clock()
                if left_s <= 0:
                    break  # the timer that ends the iterator may be late on a busy machine
                step.wait(min(arguments.step_ms / 1e3, left_s))
                pace.done += 1
                display.show(pace.done, lambda: f"elements, {pace.done / (clock() - pace.began):,.0f}/s")


def _version(path: str) -> tuple[int, int] | None:
    """Changes when the file is written; None: there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _name(files: Mapping[str, str], results: ResultPrinter) -> None:
    """Says where the report and the trace are."""
    results.keep(**files)
    for name, path in files.items():
        results.say(f"The {name} is in {path}{': open it in https://ui.perfetto.dev' if name == 'trace' else ''}")


def _ask(arguments: argparse.Namespace, results: ResultPrinter) -> int:
    """Writes what a running program has recorded about itself.

    Raises:
        OSError: It cannot be asked.
    """
    profile(arguments.out)  # raises before the program records for nothing
    answers = _answers(arguments, results)
    if not answers:
        raise FileNotFoundError(
            f"process {arguments.pid} of this user has no profile socket: run its pipelines with "
            "Options(profile_socket=True), and this command with the same TMPDIR"
        )
    reports = []
    for number, answer in enumerate(answers):
        path = Path(arguments.out).absolute()
        path = path.with_stem(f"{path.stem}-{number + 1}") if number else path
        text = answer["html"] if path.suffix == ".html" else json.dumps(answer["document"])
        with replacing(path, "the report", "asyncdata profile") as file:
            file.write(text.encode("utf-8", "xmlcharrefreplace"))
        reports.append(str(path))
        for name, stack in answer["stacks"].items():
            results.say(f"Thread {name}:")
            for line in stack.splitlines():
                results.say(line)
            results.say("")
        for line in (*answer["text"].splitlines(), "", f"The report is in {path}"):
            results.say(line)
    results.document(
        pid=arguments.pid,
        reports=reports,
        profiles=[each["document"] for each in answers],
        stacks=answers[0]["stacks"],
    )
    return OK


def _answers(arguments: argparse.Namespace, results: ResultPrinter) -> list[dict[str, Any]]:
    """What the Runtimes of a program answer; one that is gone, such as by a kill, costs the others nothing.

    Raises:
        OSError: There are sockets, and none of them answered.
    """
    answers: list[dict[str, Any]] = []
    failures: list[OSError] = []
    for path in sockets_of(arguments.pid):
        try:
            answer = ask(path, arguments.seconds)
        except BrokenPipeError:  # which to `main` means that nobody reads the result
            failures.append(ConnectionAbortedError("the program ended before it was asked"))
        except OSError as error:
            failures.append(error)
        else:
            if "error" in answer:
                failures.append(ConnectionRefusedError(answer["error"]))
            else:
                answers.append(answer)
    if failures and not answers:
        raise failures[-1]
    for failure in failures:
        results.complain(f"a Runtime of process {arguments.pid} did not answer: {failure}")
    return answers
