"""``asyncdata profile``: iterates over files or a dataset of the user's with a pretended training step, and reports."""

from __future__ import annotations

import argparse
import os
import threading
from typing import Final

from asyncdata.command_line.measured_datasets import add_measured_arguments, measured_dataset, number_above
from asyncdata.command_line.result_printer import OK, ResultPrinter
from asyncdata.observe.plain import finite
from asyncdata.observe.profile import profile
from asyncdata.observe.progress import Display, Pace
from asyncdata.observe.stopwatch import clock
from asyncdata.options import Options

HELP: Final = "find out what limits a pipeline, and write a report"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that only this command has."""
    add_measured_arguments(parser, seconds=30)
    parser.add_argument(
        "--out", default="profile.html", type=_out, metavar="FILE", help=".html or .json (default: profile.html)"
    )
    step = "pretend that a training step takes so long, for each element (default: 0)"
    parser.add_argument("--step-ms", type=number_above("--step-ms", least=0), default=0.0, metavar="MS", help=step)


def _out(text: str) -> str:
    if not text.endswith((".html", ".json")):
        raise argparse.ArgumentTypeError(f"{text!r} ends in neither .html nor .json")
    return text


def run(arguments: argparse.Namespace, options: Options, results: ResultPrinter, display: Display) -> int:
    """Iterates, and writes what was recorded."""
    recorded = profile(arguments.out)
    dataset = measured_dataset(arguments, options, results, display).with_options(options)
    step = threading.Event()  # never set: waiting for it leaves processor and interpreter to others, as a device does
    pace = Pace(clock())
    with recorded:
        for _ in range(arguments.epochs):
            with dataset.iterator() as elements:
                for _ in elements:
                    step.wait(arguments.step_ms / 1e3)
                    pace.done += 1
                    if clock() - pace.began >= arguments.seconds:
                        break
                    display.show(pace.done, lambda: f"elements, {pace.done / (clock() - pace.began):,.0f}/s")
            if clock() - pace.began >= arguments.seconds:
                break
    display.close()
    report = recorded.report()
    for line in (*str(report).splitlines(), ""):
        results.say(line)
    results.say(f"The report is in {os.path.abspath(arguments.out)}")
    results.document(source=arguments.url, report=os.path.abspath(arguments.out), profile=finite(report.document()))
    return OK
