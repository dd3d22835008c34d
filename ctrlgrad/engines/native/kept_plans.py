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
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ctrlgrad import dtypes, ir, stacks
from ctrlgrad.engines.native import kept_records, objects
from ctrlgrad.engines.native.kept_records import CannotRead, CannotWrite, Told, Vocabulary, of_record, tell_array
from ctrlgrad.engines.native.objects import ObjectCode
from ctrlgrad.ir import Graph, Node, attributes, walk
from ctrlgrad.ir.fingerprint import fingerprint
from ctrlgrad.plan.model import Plan
from ctrlgrad.records import record

MOST_BYTES = 4 << 20
"""A plan that takes more, for constants that the graph does not have, is not kept."""

_LOG = logging.getLogger("ctrlgrad")
# Where the modules lie that an optimised graph, a plan and its code follow from, besides the package of stacks and
# what says what a dtype is.
_FOLDERS = ("ir", "ops", "passes", "plan", "engines/native")


@record
class Code:
    """The machine code of a plan: a digest of the text that it is made of, and the routines that it calls."""

    name: str
    calls: tuple[str, ...]


@record
class KeptPlan:
    plan: Plan
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
    return sorted([*found, dtypes.__file__])


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
        found = kept_records.read(entry.code, _of_plans(graph))
        if isinstance(found, KeptPlan):
            return found
    except CannotRead:
        pass
    _LOG.info("the plan %s does not load: making it again", disk.file(key))
    disk.remove(key)
    return None


def write(key: str, graph: Graph, kept: KeptPlan) -> None:
    """Keep a plan of a graph, if it is one that can be kept."""
    disk = objects.open_cache()
    if disk is None:
        return
    try:
        data = kept_records.written(kept, _of_plans(graph))
    except CannotWrite:
        return
    if len(data) <= MOST_BYTES:
        disk.write(key, ObjectCode((), data))


def _of_plans(graph: Graph) -> Vocabulary:
    """The records of plans; nodes and constants of the graph by their position in it."""
    nodes = list(walk(graph))
    places = {id(node): place for place, node in enumerate(nodes)}

    def told(node: Node) -> Told:
        if id(node) not in places:
            raise CannotWrite("a node that the graph does not have")
        return "node of the graph", (places[id(node)],)

    return _KEPT | Vocabulary({Node: told}, {"node of the graph": nodes.__getitem__}) | constants_of(graph)


def constants_of(graph: Graph) -> Vocabulary:
    """Arrays that are constants of the graph, by their position; other arrays as they are."""
    arrays = [attributes.Constant.of(node).value for node in walk(graph) if node.op.name == "constant"]
    places = {id(array): place for place, array in enumerate(arrays)}

    def told(array: np.ndarray) -> Told:
        place = places.get(id(array))
        return tell_array(array) if place is None else ("constant of the graph", (place,))

    return Vocabulary({np.ndarray: told}, {"constant of the graph": arrays.__getitem__})


_KEPT = of_record(Code) | of_record(KeptPlan)

__all__ = ["MOST_BYTES", "Code", "KeptPlan", "constants_of", "key_of", "read", "write"]
