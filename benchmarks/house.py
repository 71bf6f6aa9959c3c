"""The size of the house: lines of code, files and names, by package, read from the source.

    python -m benchmarks.house [ROOT]

Lines are counted without blank lines, comments and docstrings. A concept is a name that one package of asyncdata
imports from another. Two classes of one name, constructors with many parameters, long files, and short files with one
importer are each listed, the worst first. What is exempt is said, with the reason.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.table import markdown

_REPOSITORY: Final = Path(__file__).parents[1]
_SHORT: Final = 60
_LONG: Final = 700
_MANY: Final = 10
_EXEMPT: Final[Mapping[str, str]] = {
    "asyncdata.dataset.files.CsvDataset": "ten of its parameters are tf.data's",
    "asyncdata.dataset.dataset": "signatures and docstrings",
    "asyncdata.command_line.saved_states": "a file a command",
    "asyncdata.feed.lightning_position": "one file imports lightning",
}
"""What is not a large constructor, a long file or a short one, and why."""
_LAYERS_OF_A_FAMILY: Final = ("asyncdata.dataset", "asyncdata.plan", "asyncdata.runtime.lower")
"""A family of nodes has a module of one name in each: how it is called, what it is, how it becomes stages."""
_BACKENDS: Final = tuple(f"asyncdata.storage{name}" for name in ("", ".gcs", ".hdfs", ".local", ".webhdfs"))
"""Each has a module of one name for the same thing, its reader for example."""
_NO_CODE: Final = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}
)


@dataclass(frozen=True)
class Module:
    """One file.

    Attributes:
        name: Dotted.
        lines: All of them.
        code: Lines with code.
        imports: (module, name) of everything it imports from asyncdata; the name is empty for a module as a whole.
        constructors: Parameters of each class's ``__init__``, ``self`` left out, or fields of a dataclass, by class.
        classes: Names of its classes that are not private.
    """

    name: str
    lines: int
    code: int
    imports: frozenset[tuple[str, str]] = frozenset()
    constructors: Mapping[str, int] = field(default_factory=dict)
    classes: tuple[str, ...] = ()

    @property
    def package(self) -> str:
        """The first folder below asyncdata; the module itself where it lies on top."""
        return self.name.split(".")[1] if "." in self.name else self.name


def code_lines(source: str) -> int:
    """Lines with code: neither blank, nor a comment, nor part of a docstring or of a documented attribute's text."""
    used: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE and token.type != tokenize.ENDMARKER:
            used.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            used.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(used)


def read(path: Path, name: str) -> Module:
    """One file of the source."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return Module(
        name=name,
        lines=source.count("\n"),
        code=code_lines(source),
        imports=frozenset(_imports(tree)),
        constructors={node.name: _parameters(node) for node in classes},
        classes=tuple(node.name for node in classes if not node.name.startswith("_")),
    )


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "asyncdata":
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.split(".")[0] == "asyncdata")


def _parameters(node: ast.ClassDef) -> int:
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            arguments = member.args
            return len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs) - 1
    return 0


def survey(root: Path) -> list[Module]:
    """Every file of asyncdata below `root`."""
    found = []
    for path in sorted((root / "asyncdata").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found.append(read(path, ".".join(parts[:-1] if parts[-1] == "__init__" else parts)))
    return found


def concepts(modules: Sequence[Module]) -> set[tuple[str, str]]:
    """(module, name) of what one package imports from another."""
    names = {module.name for module in modules}
    found = set()
    for module in modules:
        for source, name in module.imports:
            whole = f"{source}.{name}"
            home, thing = (whole, "") if whole in names else (source, name)
            if home in names and _package(home) != module.package:
                found.add((home, thing))
    return found


def _package(name: str) -> str:
    return name.split(".")[1] if "." in name else name


def importers(modules: Sequence[Module]) -> dict[str, set[str]]:
    """Who imports each module."""
    names = {module.name for module in modules}
    found: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        for source, name in module.imports:
            whole = f"{source}.{name}"
            found[whole if whole in names else source].add(module.name)
    return found


def rows(modules: Sequence[Module]) -> list[list[str]]:
    """A line per package, and one of them all."""
    shared = concepts(modules)
    lines = []
    for package in sorted({module.package for module in modules}):
        inside = [module for module in modules if module.package == package]
        exported = sum(1 for home, _ in shared if _package(home) == package)
        lines.append([package, str(sum(m.code for m in inside)), str(len(inside)), str(exported)])
    lines.sort(key=lambda line: -int(line[1]))
    return [*lines, ["all", str(sum(m.code for m in modules)), str(len(modules)), str(len(shared))]]


def findings(modules: Sequence[Module]) -> list[tuple[str, list[str]]]:
    """What is large, ambiguous or small, each with the places, the worst first."""
    constructors = sorted(
        ((count, f"{module.name}.{name}") for module in modules for name, count in module.constructors.items()),
        reverse=True,
    )
    longest = sorted(((module.lines, module.name) for module in modules), reverse=True)
    homes: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        for name in module.classes:
            homes[name].append(module.name)
    twice = [f"{name} ({', '.join(places)})" for name, places in sorted(homes.items()) if len(places) > 1]
    stems: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    packages = {module.name.rpartition(".")[0] for module in modules}
    for module in modules:
        folder, _, stem = module.name.rpartition(".")
        home = "a family" if folder in _LAYERS_OF_A_FAMILY else "a backend" if folder in _BACKENDS else folder
        if module.name not in packages:
            stems[stem][home].append(module.name)
    alike = [
        f"{stem} ({', '.join(name for names in places.values() for name in names)})"
        for stem, places in sorted(stems.items())
        if len(places) > 1
    ]
    known_by = importers(modules)
    small = [
        f"{module.name} ({module.lines})"
        for module in modules
        if module.name not in packages
        and 1 < module.lines < _SHORT
        and len(known_by[module.name]) == 1
        and module.name.count(".") > 1
        and module.name not in _EXEMPT
    ]
    on_top = [module.name for module in modules if module.name.startswith("asyncdata.runtime.")]
    on_top = [name for name in on_top if name.count(".") == 2 and not any(m.startswith(f"{name}.") for m in on_top)]
    return [
        ("largest constructor", [f"{count} {name}" for count, name in constructors[:3]]),
        (
            f"constructors of more than {_MANY} parameters",
            [f"{n} {name}" for n, name in constructors if n > _MANY and name not in _EXEMPT],
        ),
        ("largest file", [f"{lines} {name}" for lines, name in longest[:3]]),
        (
            f"files of more than {_LONG} lines",
            [f"{lines} {name}" for lines, name in longest if lines > _LONG and name not in _EXEMPT],
        ),
        ("modules directly in runtime", on_top),
        ("class names of two things", twice),
        ("modules of one name", alike),
        (f"files under {_SHORT} lines with one importer", small),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.house", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("root", nargs="?", type=Path, default=_REPOSITORY, help="of the source (default: this one)")
    parser.add_argument("--all", action="store_true", help="name every place, not only the first five")
    options = parser.parse_args(arguments)
    modules = survey(options.root)
    print(markdown(("package", "code lines", "files", "names others import"), rows(modules)))
    print()
    for title, places in findings(modules):
        shown = places if options.all else places[:5]
        more = f", … {len(places)} in all" if len(places) > len(shown) else ""
        print(f"- {title}: {len(places)}; {', '.join(shown)}{more}" if places else f"- {title}: none")
    print(f"- exempt: {', '.join(f'{name} ({why})' for name, why in _EXEMPT.items())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
