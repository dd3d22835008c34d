"""The dataflow runtime: structured graphs lowered to five primitives and run by asynchronous executors.

    graph, builder     the flat graph and its text; building one by hand
    verifier           the rules that every flat graph keeps
    scopes             what a node has to be by itself, which frame it is in, when it is alive
    lowering           structured graph -> flat graph
    devices            names of devices; what an executor needs of one
    placement          where each node goes, on which rank; which loops stay one node
    clusters           ordinary ops joined, to run as one piece
    partition          a flat graph per device, Send and Recv, control loops
    drawing            flat graphs as Graphviz, runs as Chrome traces
    frames             tokens and iterations; how a loop's carry goes on
    plan               a device's graph, ready to run: what each node does, and what it waits for
    messages           what goes between devices; mailboxes of a process
    executor           one device's run
    settings, engine   what may be chosen, and what is prepared for it; a call from start to end, on every rank
    cuda               a GPU in one run
    mpi_transport      messages between devices of several ranks

Sources: "Implementation of Control Flow in TensorFlow" (whitepaper, 2017); Yu et al., "Dynamic Control Flow in
Large-Scale Machine Learning", EuroSys 2018 (arXiv 1805.01772).
"""

from ctrlgrad.dataflow.devices import device
from ctrlgrad.dataflow.drawing import Recorder, join_traces
from ctrlgrad.dataflow.engine import run_flat
from ctrlgrad.dataflow.graph import FlatGraph, FlatNode
from ctrlgrad.dataflow.lowering import FlatBuilder, lower
from ctrlgrad.dataflow.settings import Settings, settings
from ctrlgrad.dataflow.verifier import verify_flat

__all__ = [
    "FlatBuilder",
    "FlatGraph",
    "FlatNode",
    "Recorder",
    "Settings",
    "device",
    "join_traces",
    "lower",
    "run_flat",
    "settings",
    "verify_flat",
]


def __dir__() -> list[str]:
    return sorted(__all__)
