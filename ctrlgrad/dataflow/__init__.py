"""The dataflow runtime: structured graphs are lowered to five primitives, which asynchronous executors run.

The modules, in reading order:

    graph        flat graphs and their text
    lowering     from a structured graph to a flat graph, and the builder of flat graphs
    verifier     rules that every flat graph keeps
    scopes       rules of each node: its operands, its frame, and the condition under which it is alive
    devices      names of devices, and the protocol between a device and its executor
    partition    a device for each node, and a graph for each device, with Send and Recv
    stages       loops that are a pipeline of devices: a plan of each device for a chunk of iterations
    plan         the graph of a device, ready to run: clusters of ops, and what each node waits for
    frames       tokens, iterations, and frames
    messages     messages between devices: mailboxes of a process, and MPI between ranks
    settings     options of a run, and the graphs that are prepared for them
    engine       the executor of a device, and a call from start to end on every rank
    cuda         a GPU as a device
    drawing      flat graphs as Graphviz, runs as Chrome traces

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
