"""Plans on disk: a new process that meets a graph again takes its plan, and the code for it, without making them.

An entry belongs to what the plan follows from: the fingerprint of the graph, what is known of the arguments' sizes, the
passes that are left out, the modules that make plans and code of them, by their content, and the processor. It holds
the plan, and by what its machine code is found, which lies beside it (`objects`). The nodes of the graph that a plan
tells of are kept by their position, so that errors name the user's code as it is now. Not kept are the plan of a graph
with something that has no fingerprint, as a callback, and one with nodes that only the plan has (sorting is lowered by
a graph of its own).
"""

from __future__ import annotations

import functools
import hashlib
import io
import logging
import os
import pickle
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ctrlgrad import ir, stacks
from ctrlgrad.engines.native import objects
from ctrlgrad.engines.native.frame import Layout
from ctrlgrad.engines.native.objects import ObjectCode
from ctrlgrad.ir import Graph, Node, attributes, walk
from ctrlgrad.ir.fingerprint import fingerprint
from ctrlgrad.plan.model import Plan
from ctrlgrad.records import record

MOST_BYTES = 4 << 20
"""A plan that takes more, for constants that the graph does not have, is not kept."""

_LOG = logging.getLogger("ctrlgrad")
# Where the modules lie that an optimised graph, a plan and its code follow from, besides the package of stacks.
_FOLDERS = ("ir", "ops", "passes", "plan", "engines/native")


@record
class Code:
    """The machine code of a plan: a digest of the text that it is made of, and the routines that it calls."""

    name: str
    calls: tuple[str, ...]


@record
class KeptPlan:
    plan: Plan
    # Where everything of it stands in its frame.
    layout: Layout
    code: Code


def key_of(graph: Graph, told: Sequence[Any]) -> str | None:
    """The key of the plan of a graph that follows from it and from what is `told`; None where it cannot be kept."""
    if objects.open_cache() is None:
        return None
    found = fingerprint(graph)
    if found is None:
        return None
    version = _version()
    if version is None:
        return None
    return objects.key_of(["plan", found, *map(repr, told), version, sys.version, np.__version__], [])


def modules() -> list[str]:
    """The modules that an optimised graph, its plan and its code follow from."""
    package = os.path.dirname(os.path.dirname(ir.__file__))
    waiting, found = [os.path.join(package, *folder.split("/")) for folder in _FOLDERS], []
    waiting.append(os.path.dirname(stacks.__file__))
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    found.append(entry.path)
                elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir():
                    waiting.append(entry.path)
    return sorted(found)


@functools.cache
def _version() -> str | None:
    """A digest of those modules' text; None where it cannot be read. Some two hundred files: each costs its reading."""
    digest = hashlib.sha256()
    try:
        for path in modules():
            with open(path, "rb", buffering=0) as file:
                text = file.read()
            digest.update(f"{path} {len(text)} ".encode())
            digest.update(text)
    except OSError:
        return None
    return digest.hexdigest()


def read(key: str, graph: Graph) -> KeptPlan | None:
    """The plan of a key, of this graph; None where it is not kept."""
    disk = objects.open_cache()
    entry = None if disk is None else disk.read(key)
    if disk is None or entry is None:
        return None
    try:
        found = Reader(io.BytesIO(entry.code), graph).load()
    except Exception:  # whatever bytes are that nobody has written here
        found = None
    if not isinstance(found, KeptPlan):
        _LOG.info("the plan %s does not load: making it again", disk.file(key))
        disk.remove(key)
        return None
    return found


def write(key: str, graph: Graph, kept: KeptPlan) -> None:
    """Keep a plan of a graph, if it is one that can be kept."""
    disk = objects.open_cache()
    if disk is None:
        return
    file = io.BytesIO()
    try:
        Writer(file, graph).dump(kept)
    except pickle.PicklingError:
        return
    if file.tell() <= MOST_BYTES:
        disk.write(key, ObjectCode((), file.getvalue()))


def _constants(graph: Graph) -> list[np.ndarray]:
    return [attributes.Constant.of(node).value for node in walk(graph) if node.op.name == "constant"]


class _Kinds(dict[type, type | None]):
    """Of a class the one that says how its objects are written, if not as all others are."""

    def __missing__(self, cls: type) -> type | None:
        kind = next((k for k in (Node, np.ndarray, Graph, ir.Value) if issubclass(cls, k)), None)
        self[cls] = kind
        return kind


_KINDS = _Kinds()


class Writer(pickle.Pickler):
    """Writes what a plan is made of; nodes and constants of the graph by their position."""

    def __init__(self, file: Any, graph: Graph) -> None:
        super().__init__(file, protocol=5)
        self.nodes = {id(node): k for k, node in enumerate(walk(graph))}
        self.constants = {id(array): k for k, array in enumerate(_constants(graph))}

    def persistent_id(self, item: Any) -> tuple[str, int] | None:
        # Asked about every object of a plan, so by its class, of which there are few.
        kind = _KINDS[type(item)]
        if kind is None:
            return None
        if kind is Node:
            return "node", self._position(self.nodes, item)
        if kind is np.ndarray:
            return ("constant", self.constants[id(item)]) if id(item) in self.constants else None
        raise pickle.PicklingError("a part of a graph by itself")

    def _position(self, known: dict[int, int], item: Any) -> int:
        if id(item) not in known:
            raise pickle.PicklingError("a node that the graph does not have")
        return known[id(item)]

    def reducer_override(self, item: Any) -> Any:
        # A dtype that is read becomes the one that all others are, not one like it.
        return (np.dtype, (item.str,)) if isinstance(item, np.dtype) else NotImplemented


class Reader(pickle.Unpickler):
    """Reads it: `found` are the nodes and the constants of the graph."""

    def __init__(self, file: Any, graph: Graph) -> None:
        super().__init__(file)
        self.found: dict[str, Sequence[Any]] = {"node": list(walk(graph)), "constant": _constants(graph)}

    def persistent_load(self, position: tuple[str, int]) -> Any:
        kind, number = position
        return self.found[kind][number]


__all__ = ["MOST_BYTES", "Code", "KeptPlan", "Reader", "Writer", "key_of", "read", "write"]
