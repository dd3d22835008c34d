"""The intermediate representation: types, ops, the structured graph, its builder, verifier and printer."""

from ctrlgrad.ir.builder import Builder, Closed, close, copy_node, copy_nodes, free_values
from ctrlgrad.ir.control import Branch, Call, Loop, is_branch, is_call, is_loop, view
from ctrlgrad.ir.counting import Counting, step_of
from ctrlgrad.ir.graph import Graph, Node, Value
from ctrlgrad.ir.op import OPS, Op, Trait, Use, declare
from ctrlgrad.ir.printer import format_graph
from ctrlgrad.ir.rewrite import Rewriter, rewrite
from ctrlgrad.ir.types import BOOL, INDEX, StackType, TensorType, Type, broadcast_shapes, join
from ctrlgrad.ir.verifier import verify
from ctrlgrad.ir.walk import count_ops, definitions, uses, walk

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
