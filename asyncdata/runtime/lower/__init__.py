"""From nodes to stages: the only package that knows both, with a file per family of nodes.

Lowering starts nothing. It runs on the stage loop: once for the plan, and again for every inner dataset and every
epoch. Importing the package registers every kind of node.
"""

from __future__ import annotations

from asyncdata.runtime.lower import combining, files, grouping, sources, transformations, workers
from asyncdata.runtime.lower.registry import lower as lower
from asyncdata.runtime.lower.registry import lowers as lowers

__all__ = ["combining", "files", "grouping", "lower", "lowers", "sources", "transformations", "workers"]
