"""The intermediate representation: types, ops, and the structured graph.

The modules, in reading order:

    types, attributes    types of values, attributes of nodes
    op, rules            declarations of ops, and rules that users give for derivatives and batching
    graph, builder       graphs, and how they are built
    control, flow        the parts of loops and branches, trip counts, and the versions of stacks
    walk                 regions, effects, dependence, and rewriting
    verifier             rules that every graph keeps
    interning, caching   graphs with equal meaning, digests for the disk, and caches
    printer, svg, page   text, pictures, and pages
"""

from ctrlgrad.ir.builder import Builder, Closed, close, copy_node, copy_nodes, free_values
from ctrlgrad.ir.control import Branch, Call, Counting, Loop, is_branch, is_call, is_loop, step_of, view
from ctrlgrad.ir.graph import Graph, Node, Value
from ctrlgrad.ir.op import OPS, Op, Trait, Use, declare
from ctrlgrad.ir.printer import format_graph
from ctrlgrad.ir.types import BOOL, INDEX, StackType, TensorType, Type, broadcast_shapes, join
from ctrlgrad.ir.verifier import verify
from ctrlgrad.ir.walk import Rewriter, count_ops, definitions, rewrite, uses, walk
