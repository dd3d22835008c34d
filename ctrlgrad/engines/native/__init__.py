"""The native engine: plans printed as LLVM, compiled by llvmlite, run by one native call per call of a graph.

The modules, in reading order. From a graph to its code:

    engine                    whole graphs: a plan for each pattern of sizes that a graph meets
    pieces                    plans for parts of a graph that an interpreter runs
    ahead, objects, target    compilation in other threads, object files on disk, LLVM text to an object
    llvm, library             LLVM in this process, and the code of the elementary functions

A plan as text:

    emit                      the text of a whole plan
    text, plan_text, loops    lines of LLVM, the parts that all steps share, and loops over a count
    nests, nest               kernels as loop nests with vectors along the innermost axis
    elements, expressions     elements of arrays, and the arithmetic of a kernel
    reductions, sum_blocks    the arithmetic of reductions, and long sums block by block
    cumulative                cumulative sums and products, in vector lanes and in parts for threads
    extremes                  an extreme and its position in one pass
    short_rows                short rows of a kernel taken several at a time
    shared_nests              nests cut into parts for the pool's threads
    product_calls             matrix products, as calls of the routines in `products`
    factor_calls              linear systems and factorisations, likewise
    transform_calls           discrete Fourier transforms, likewise
    stack_text                steps on stacks
    outside_text              calls to the reference kernels
    sections                  long kernels as several functions
    shared_code               code that a plan uses at many places

A plan that runs:

    frame, frame_memory       the words through which a plan and its driver speak, and its workspaces
    runtime, marshalling      one call: arguments into the frame, requests of the plan, results out of it
    memory                    memory of compiled code as NumPy arrays
    stacks                    stacks of a running plan
    entry                     calls from compiled code that is not Python's
    outside                   reference kernels that a plan calls
    failures, refusals        failures as the user's errors, and runs that another engine has to repeat
    positions                 iterations of the running loops, for callbacks and errors
    report                    `explain`, loop by loop
"""
