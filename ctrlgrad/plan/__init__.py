"""Plans: what compiling engines decide about a whole graph, as data, before any code is printed.

The modules, in reading order. A plan as data:

    model                      the plan, its steps, and the values that they work with
    sizes, expression          sizes and arithmetic
    effects, liveness          what each step reads, updates and defines, and live ranges
    decisions, places          decisions about the execution, and where arrays lie
    printer                    plans as text

From a graph to a plan, by `planning`:

    lowering                   steps over values, not fused and not placed yet
    elementary, elementwise    elementary functions and elementwise ops as expressions
    arguments, reductions      facts of arguments, and the reductions of kernels
    accumulation               `accumulate`: products that are added to something as they are made
    fusion                     `fuse`: kernels over one space become one
    columns, packing           operands laid out once before a loop
    tiling                     consecutive kernels, and loops over long vectors, tile by tile
    axes                       the axes of a kernel's nest, and vectors along them
    vectors                    vector forms of kernels
    sharing                    parts of kernels, cumulative operations and transforms that threads share
    outlining                  functions of a long plan, and what each keeps near
    stack_handles              versions of stacks as run-time objects
    placement                  which arrays share memory, where pushes land, and copies at the ends of blocks
    chunks                     loops that run in chunks of a memory manager

The judge:

    checker, checking          a placed plan replayed without data: each read finds the value that it wants
"""

# Passes from plan to plan, in their order. None changes what a plan computes but for rounding: each can be left out.
PASSES = ("accumulate", "fuse", "contract", "lay_out_columns", "pack_constants")

__all__ = ["PASSES"]
