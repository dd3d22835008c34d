"""The CUDA engine: values on the device, control on the host.

A region of a graph becomes a list of steps. Elementwise nodes of one shape are one kernel, products are cuBLAS's,
other ops are functions of the array library, and what the library lacks goes through the host. Everything that meets
the device does so through an `ArrayLibrary`: CuPy on a card, a strict stand-in on NumPy in the tests.

The modules, in reading order:

    engine                    a graph and its arguments to results
    placement, regions        a place for each value, and the nodes that are one kernel
    compile, program          a region as a list of steps; one run of it, and its transfers
    library, cupy_library     the interface to an array library, and CuPy behind it
    kernel, kernels           kernels in CUDA C++, and the kernels of the ops
    reductions                reductions, scans and elementwise kernels: texts, trees and launches
    products, indexing        products by cuBLAS, and reads and updates by indices on the card
    control                   branches, callbacks, loops and parts on the host
    prepared                  bodies of loops as launch lists without Python in between
    stacks, chunks            stacks on the card, their chunks, and the account of a run in a memory session
    copies, sites             copies beside the computation, and positions of errors
"""
