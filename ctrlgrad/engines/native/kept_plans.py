"""Plans on disk: a new process that meets a graph again takes its plan, and the code for it, without making them.

An entry belongs to what the plan follows from: the fingerprint of the graph, what is known of the arguments' sizes, the
passes that are left out, the processor, and the modules that make plans and code of them. It begins with a digest of
those modules' content, and one that they made before they were changed is made anew; so who meets a graph for the first
time need not read two hundred files before it has its plan. Then comes the plan, and by what its machine code is found,
which lies beside it (`objects`). The nodes of the graph that a plan
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
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctrlgrad import dtypes, ir, stacks
from ctrlgrad.engines.native import ahead, kept_records, objects
from ctrlgrad.engines.native.kept_records import CannotRead, CannotWrite, Told, Vocabulary, of_record, tell_array
from ctrlgrad.engines.native.objects import ObjectCode
from ctrlgrad.ir import Graph, Node, attributes, walk
from ctrlgrad.ir.interning import fingerprint
from ctrlgrad.plan.model import Plan
from ctrlgrad.records import record

MOST_BYTES = 4 << 20
"""What takes more, as a plan may for constants that the graph does not have, is not kept."""

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
    return objects.key_of(["plan", found, *map(repr, told), ir.__file__, sys.version, np.__version__], [])


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
def version() -> bytes | None:
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
    return digest.hexdigest().encode()


def found(key: str) -> bytes | None:
    """Return the bytes kept under a key, if the modules that made them are unchanged; else None."""
    disk = objects.open_cache()
    entry = None if disk is None else disk.read(key)
    if entry is None:
        return None
    made_by, _, data = entry.code.partition(b"\n")
    return data if made_by == version() else None


def keep(key: str, pack: Callable[[], bytes | None]) -> None:
    """Keep what `pack` gives, if it is small enough; some time later (see `ahead`)."""
    disk = objects.open_cache()
    if disk is None:
        return

    def write() -> None:
        data = pack()
        if data is not None and len(data) <= MOST_BYTES and (made_by := version()):
            disk.write(key, ObjectCode((), made_by + b"\n" + data))

    ahead.put_off(write)


def refuse(key: str, what: str) -> None:
    """Remove what does not load, and say so."""
    disk = objects.open_cache()
    if disk is not None:
        _LOG.info("the %s %s does not load: making it again", what, disk.file(key))
        disk.remove(key)


def read(key: str, graph: Graph) -> KeptPlan | None:
    """The plan of a key, of this graph; None where it is not kept."""
    data = found(key)
    if data is None:
        return None
    try:
        kept = kept_records.read(data, _of_plans(graph))
        if isinstance(kept, KeptPlan):
            return kept
    except CannotRead:
        pass
    refuse(key, "plan")
    return None


def write(key: str, graph: Graph, kept: KeptPlan) -> None:
    """Keep a plan of a graph, if it is one that can be kept."""

    def pack() -> bytes | None:
        try:
            return kept_records.written(kept, _of_plans(graph))
        except CannotWrite:
            return None

    keep(key, pack)


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
