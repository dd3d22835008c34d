"""Processes that MPI has started together: their number, their messages, and their common end.

    launch    number of ranks, from the environment of the launcher; how a rank that dies ends all ranks
    world     messages and sums; the only module that imports mpi4py
    wire      messages as bytes
    sums      sums over ranks in the background of a computation

Nothing is imported before it is used: a process that no `mpirun` started never loads mpi4py.
"""
