"""``asyncdata state``: what is in a saved state, and where two of them differ."""

from __future__ import annotations

import argparse
import dataclasses

from asyncdata import state
from asyncdata.command_line.result_printer import FOUND, OK, ResultPrinter, UsageError
from asyncdata.observe.progress import Display
from asyncdata.options import Options

HELP = "show what is in a state that was saved in the middle of an epoch, or where two of them differ"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that only this command has."""
    parser.add_argument("action", choices=("show", "diff"), help="show one state, or the differences of two")
    parser.add_argument("url", nargs="+", metavar="URL", help="URL or path of a state that asyncdata.state.save wrote")


def run(arguments: argparse.Namespace, options: Options, results: ResultPrinter, display: Display) -> int:
    """Shows states.

    Returns:
        The exit code: 1 if two states differ.

    Raises:
        StateError: One is damaged, or no state.
        StorageError: One cannot be read.
        UsageError: The number of states is wrong.
    """
    del display  # there is nothing to wait for
    wanted = {"show": 1, "diff": 2}[arguments.action]
    if len(arguments.url) != wanted:
        raise UsageError(f"{arguments.action} takes {wanted} URL{'s'[: wanted - 1]}, not {len(arguments.url)}")
    loaded = [state.load(url, options) for url in arguments.url]
    if arguments.action == "show":
        description = state.describe(loaded[0])
        for line in str(description).splitlines():
            results.say(line)
        fields = {field.name: getattr(description, field.name) for field in dataclasses.fields(description)}
        results.document(
            **{"state_version" if name == "version" else name: value for name, value in fields.items()}
            | {"files": [dataclasses.asdict(file) for file in description.files]}
        )
        return OK
    differences = state.diff(*loaded)
    for line in differences or ["no differences"]:
        results.say(line)
    results.document(differences=differences)
    return FOUND if differences else OK
