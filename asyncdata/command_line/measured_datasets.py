"""What ``bench`` and ``profile`` iterate: files, or a dataset of the user's; and for how long."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import os
import sys
import threading
import traceback
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress

from asyncdata import arguments as checks
from asyncdata.command_line.located_files import add_file_arguments, locate
from asyncdata.command_line.result_printer import ResultPrinter, UsageError, UserCodeError
from asyncdata.dataset.dataset import Dataset
from asyncdata.errors import AsyncdataError, PipelineClosedError
from asyncdata.observe.progress import Display
from asyncdata.observe.stopwatch import clock
from asyncdata.options import Options
from asyncdata.runtime.consumer.iterate import PipelineIterator
from asyncdata.workers.failure import UserFunctionError, in_a_line, raised_at


def add_measured_arguments(parser: argparse.ArgumentParser, *, seconds: float, may_be_none: bool = False) -> None:
    """What is iterated, and when that ends.

    Args:
        parser: Of the command.
        seconds: The default of ``--seconds``.
        may_be_none: Whether the command can do something else.
    """
    urls = "URL, glob or range in braces; or module:function, which returns a Dataset"
    add_file_arguments(parser, urls, may_be_none=may_be_none)
    at_most = f"stop after this time (default: {seconds:g})"
    parser.add_argument("--seconds", type=number_above("--seconds"), default=seconds, metavar="S", help=at_most)
    parser.add_argument(
        "--epochs", type=_epochs, default=1, metavar="N", help="stop after this many epochs (default: 1)"
    )


def number_above(option: str, least: float | None = None, most: float | None = None) -> Callable[[str], float]:
    """Reads an option's value: a number above 0, or one that is not below `least`; with `most`, nor above that."""

    def read(text: str) -> float:
        try:
            return checks.number(option, float(text), least=least, most=most, above=0 if least is None else None)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def _epochs(text: str) -> int:
    try:
        return checks.integer("--epochs", int(text), least=1)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def measured_dataset(
    arguments: argparse.Namespace, options: Options, results: ResultPrinter, display: Display
) -> Dataset:
    """What is measured.

    Raises:
        UsageError: That is not one thing.
        StorageError: Some of it cannot be read.
    """
    if len(arguments.url) == 1 and names_dataset(arguments.url[0]):
        return named_dataset(arguments.url[0])
    located = asyncio.run(locate(arguments.url, options, display, arguments.format))
    if located.unreadable:
        for error in located.unreadable[1:]:
            results.complain(str(error))
        raise located.unreadable[0]
    kinds = located.by_kind()
    if len(kinds) > 1:
        raise UsageError(f"the files are of different kinds: {'; '.join(map(str, kinds))}. Measure one kind at a time")
    ((kind, files),) = kinds.items()
    return kind.records([each.info.url for each in files], in_order=False)


def names_dataset(word: str) -> bool:
    """Whether a word is ``module:function`` rather than a URL."""
    module, colon, name = word.partition(":")
    return bool(colon) and name.isidentifier() and all(map(str.isidentifier, module.split(".")))


def named_dataset(word: str) -> Dataset:
    """The dataset that ``module:function`` returns, or is. The module may lie in the current directory.

    Raises:
        UsageError: It cannot be imported or called, or is no dataset.
    """
    module, _, name = word.partition(":")
    # For the whole program: worker processes import the functions of the module by its name.
    sys.path.insert(0, os.getcwd())
    with _output_on_stderr(), _told(f"{word} cannot be imported"):
        found = getattr(importlib.import_module(module), name)
    dataset = found
    if callable(found):
        with _output_on_stderr(), _told(f"{word} failed"):
            dataset = found()
    if inspect.iscoroutine(dataset):
        dataset.close()
        raise UsageError(f"{word} is an async function; give a plain one that returns a Dataset")
    if not isinstance(dataset, Dataset):
        raise UsageError(f"{word} is {checks.shown(dataset)}, which is neither a Dataset nor returns one")
    return dataset


@contextmanager
def ending_at(until: float, elements: PipelineIterator) -> Generator[None]:
    """Ends an iteration, and leaves the block, when the time has come, also where no element comes any more.

    Args:
        until: When, by the clock of stopwatches.
        elements: What is iterated in the block.
    """
    # A daemon, so that nobody waits for it; and ending takes no time, so that nobody waits in it.
    timer = threading.Timer(min(max(0.0, until - clock()), threading.TIMEOUT_MAX), elements.abandon)
    timer.daemon = True
    timer.start()
    try:
        yield
    except PipelineClosedError:
        if clock() < until:
            raise
    finally:
        timer.cancel()


@contextmanager
def running_user_code() -> Generator[None]:
    """Around what calls functions of the user: what they print goes to standard error, as results have the output.

    Raises:
        UserCodeError: One of them failed.
    """
    with _output_on_stderr():
        try:
            yield
        except UserFunctionError as error:
            raise UserCodeError(_with_notes(str(error), error)) from None
        except AsyncdataError:
            raise
        except Exception as error:  # noqa: BLE001 -- code of the user's may raise anything
            raise UserCodeError(_with_notes(in_a_line(error), error)) from None


def _with_notes(text: str, error: BaseException) -> str:
    """The text, with the user's line if it is known, and the notes."""
    notes = "\n".join(map(str, getattr(error, "__notes__", ())))
    place = raised_at(error) or (raised_at(error.__cause__) if error.__cause__ is not None else "")
    return "\n".join(filter(None, [text if not place or place in notes else f"{text} ({place})", notes]))


@contextmanager
def _output_on_stderr() -> Generator[None]:
    """What is printed goes to standard error, also by worker processes and by code that is not written in Python."""
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(sys.stderr))
        output, errors = sys.__stdout__, sys.__stderr__
        if output is not None and errors is not None:
            with suppress(OSError, ValueError):  # a descriptor that is closed
                output.flush()
                before = os.dup(output.fileno())
                stack.callback(os.close, before)
                os.dup2(errors.fileno(), output.fileno())
                stack.callback(os.dup2, before, output.fileno())
        yield


@contextmanager
def _told(what: str) -> Generator[None]:
    """Says in one line how code of the user's ended, and where; an error of the library stays what it is."""
    try:
        yield
    except AsyncdataError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 -- code of the user's may raise anything
        frames = traceback.extract_tb(error.__traceback__)
        own = [each for each in frames if each.filename != __file__ and "importlib" not in each.filename]
        place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
        raise UsageError(f"{what}: {in_a_line(error)}{place}") from None
