"""The intermediate representation: types, ops, the structured graph, its builder, verifier and printer."""

from ctrlgrad.ir.builder import Builder, Closed, close, copy_node, copy_nodes, free_values
from ctrlgrad.ir.control import Branch, Call, Counting, Loop, is_branch, is_call, is_loop, step_of, view
from ctrlgrad.ir.graph import Graph, Node, Value
from ctrlgrad.ir.op import OPS, Op, Trait, Use, declare
from ctrlgrad.ir.printer import format_graph
from ctrlgrad.ir.types import BOOL, INDEX, StackType, TensorType, Type, broadcast_shapes, join
from ctrlgrad.ir.verifier import verify
from ctrlgrad.ir.walk import Rewriter, count_ops, definitions, rewrite, uses, walk

__all__ = [
    "BOOL",
    "INDEX",
    "OPS",
    "Branch",
    "Builder",
    "Call",
    "Closed",
    "Counting",
    "Graph",
    "Loop",
    "Node",
    "Op",
    "Rewriter",
    "StackType",
    "TensorType",
    "Trait",
    "Type",
    "Use",
    "Value",
    "broadcast_shapes",
    "close",
    "copy_node",
    "copy_nodes",
    "count_ops",
    "declare",
    "definitions",
    "format_graph",
    "free_values",
    "is_branch",
    "is_call",
    "is_loop",
    "join",
    "rewrite",
    "step_of",
    "uses",
    "verify",
    "view",
    "walk",
]
