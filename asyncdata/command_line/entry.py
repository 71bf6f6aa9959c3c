"""``asyncdata``: reads the command line, runs a command, and turns how it ended into an exit code.

| exit code | meaning |
|---|---|
| 0 | all is well |
| 1 | something is wrong with the data or the machine, or a function of the user's failed |
| 2 | the command line is wrong |
| 3 | storage could not be read, or the command could not be carried out |
| 130 | Ctrl-C |
| 141 | nobody reads the output any more |
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final, NoReturn

import asyncdata
from asyncdata.command_line import bench, doctor, inspect, profiling, saved_states, verify
from asyncdata.command_line.result_printer import (
    CLOSED_PIPE,
    FAILED,
    FOUND,
    INTERRUPTED,
    USAGE,
    ResultPrinter,
    UsageError,
    UserCodeError,
)
from asyncdata.errors import AsyncdataError, DataError, UnsupportedURLError
from asyncdata.observe.progress import Display, open_display
from asyncdata.options import MIB, Options
from asyncdata.redaction import redact
from asyncdata.storage.backends import backend_of, check_storage

COMMANDS: Final[dict[str, ModuleType]] = {
    "inspect": inspect,
    "verify": verify,
    "bench": bench,
    "profile": profiling,
    "state": saved_states,
    "doctor": doctor,
}

_MAPPINGS: Final = ("config", "headers")
"""Options of storage whose values are names with values of their own."""
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: The words behind the program's name; by default those of the process.

    Returns:
        The exit code; see the module's docstring.
    """
    words = sys.argv[1:] if argv is None else argv
    try:
        given = parser().parse_args(words)
    except _WrongWords as wrong:
        command = next((word for word in words if word in COMMANDS), None)
        with contextlib.suppress(OSError):
            ResultPrinter(command, sys.stdout, None, as_json="--json" in words).document(error=wrong.message)
        return USAGE
    except SystemExit:  # of argparse: help or the version was wanted
        return 0
    display = Display() if given.quiet else open_display(None, f"asyncdata {given.command}")
    results = ResultPrinter(given.command, sys.stdout, sys.stderr, as_json=given.json)
    try:
        return int(COMMANDS[given.command].run(given, _options(given), results, display))
    except BrokenPipeError:
        # What is still buffered has no reader either, and Python would complain about it when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            results.document(error="interrupted")
        return INTERRUPTED
    except (UsageError, UserCodeError, AsyncdataError, OSError) as error:
        for line in str(error).splitlines():
            results.complain(line)
        with contextlib.suppress(OSError):  # the document may be what could not be printed
            results.document(error=str(error))
        if isinstance(error, UsageError):
            return USAGE
        return FOUND if isinstance(error, DataError | UserCodeError) else FAILED
    finally:
        display.close()


class _WrongWords(SystemExit):
    """The command line is wrong, and that was said on standard error."""

    def __init__(self, message: str) -> None:
        super().__init__(USAGE)
        self.message = message


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exits with a message, which repeats arguments; a URL among them may hold a secret."""
        try:
            super().error(redact(message))
        except SystemExit:
            raise _WrongWords(redact(message)) from None


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = _Parser(
        prog="asyncdata",
        description="Look into files of training data, check them, and measure how fast they are read.",
    )
    made.add_argument("--version", action="version", version=f"asyncdata {asyncdata.__version__}")
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        command = commands.add_parser(
            name, help=module.HELP, description=f"{module.HELP[:1].upper()}{module.HELP[1:]}."
        )
        module.add_arguments(command)
        command.add_argument("--json", action="store_true", help="print one JSON document instead of text")
        command.add_argument("--quiet", action="store_true", help="show no progress")
        memory = "memory limit of a pipeline, such as 512M or 2G (default: that of the library)"
        command.add_argument("--memory", type=_bytes, metavar="SIZE", help=memory)
        storage = "an option of a storage backend, such as gs.token=anon; may be repeated"
        command.add_argument(
            "--storage", action="append", default=[], type=_storage, metavar="SCHEME.KEY=VALUE", help=storage
        )
    return made


def _options(given: argparse.Namespace) -> Options:
    """The options of every pipeline of a command."""
    storage: dict[str, dict[str, Any]] = {}
    for scheme, key, value in given.storage:
        if key in _MAPPINGS and backend_of(scheme) is not None:
            raise UsageError(
                f"{scheme}.{key} has names and values of its own, which --storage cannot give; in a program, "
                "Options(storage=...) can"
            )
        storage.setdefault(scheme, {})[key] = value
    try:
        check_storage(Options(storage=storage).storage)
    except (ValueError, TypeError, UnsupportedURLError) as error:
        raise UsageError(str(error)) from None
    said: dict[str, Any] = {"storage": storage} if storage else {}
    if given.memory is not None:
        said["memory_limit_bytes"] = given.memory
    return Options(**said)


def _bytes(text: str) -> int:
    digits = text.rstrip("bBiI")
    unit = digits[-1:].lower() if not digits[-1:].isdigit() else ""
    number = digits[: len(digits) - len(unit)]
    if unit not in _UNITS or not number.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 512M or 2G")
    count = int(number) * _UNITS[unit]
    if count < 4 * MIB:
        raise argparse.ArgumentTypeError(f"{text!r} is less than 4M")
    if count > sys.maxsize:
        raise argparse.ArgumentTypeError(f"{text!r} is more than this machine can address")
    return count


def _storage(text: str) -> tuple[str, str, Any]:
    name, equals, value = text.partition("=")
    scheme, dot, key = name.partition(".")
    if not (equals and dot and scheme and key):
        # The text may hold a secret.
        raise argparse.ArgumentTypeError("an option of storage is written SCHEME.KEY=VALUE, such as gs.token=anon")
    return scheme, key, {"true": True, "false": False}.get(value.lower(), value)
