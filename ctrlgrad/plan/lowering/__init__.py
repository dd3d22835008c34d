"""From a graph to a plan, a family of ops per file: steps over values, not fused and not placed yet.

The modules, in reading order:

    lower                     the lowering of a whole graph, by a table of rules
    state                     the item that stands for each value, sizes, scopes, and the steps so far
    arithmetic, broadcasting  elementwise ops, reductions and products; arrays whose sizes are not known to be equal
    moving, indexing          ops that move elements; reads and updates at indices
    linalg, sorting           factorisations and linear systems; sorts, selections and cumulative operations
    fourier                   discrete Fourier transforms
    stacks, stack_facts       stacks, and facts that the lowering must know of them
    ragged                    stacks of rows whose sizes differ
    outside                   ops that the reference kernels compute
"""
