"""The dataflow runtime: structured graphs lowered to five primitives and run by asynchronous executors.

    graph, builder, node_rules, verifier  the flat graph: what it is, how it is made, its rules
    printer, dot                          its text and its drawing
    scopes                                frames and liveness of a flat graph
    lowering, whole_loops                 structured graph -> flat graph; which loops stay one node
    devices, placement                    where each node goes
    clusters, pieces                      ordinary ops joined; what runs them
    partition                             a flat graph per device, Send and Recv, control loops
    plan, steps, tokens, running          a device's graph made ready to run; the rule of each primitive; iterations
    device_runs, cuda_devices, cuda_runs, cuda_copies
                                          how values get to a device and leave it: on the processor, on a GPU
    executor, complaints, transport       one device's run; what it says when it fails; messages between devices
    together, engine, settings, recorder  all devices of a process; a call from start to end; what may be chosen; traces
    mpi_messages, mpi_errors              what goes between processes, as bytes
    mpi_transport, mpi_stillness, mpi_run devices of several ranks; when all of them are stuck; a call on every rank

Sources: "Implementation of Control Flow in TensorFlow" (whitepaper, 2017); Yu et al., "Dynamic Control Flow in
Large-Scale Machine Learning", EuroSys 2018 (arXiv 1805.01772).
"""

from ctrlgrad.dataflow.builder import FlatBuilder
from ctrlgrad.dataflow.devices import device
from ctrlgrad.dataflow.engine import run_flat
from ctrlgrad.dataflow.graph import FlatGraph, FlatNode
from ctrlgrad.dataflow.lowering import lower
from ctrlgrad.dataflow.recorder import Recorder, join_traces
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
