"""Several processes that MPI has started together: how many there are, what they tell each other, and how they end.

    watch        notices a rank that dies, and ends all ranks together
    launch       how many ranks were started, read from the environment; joining them
    world        what they exchange; the one module that imports mpi4py
    wire         messages as bytes
    sums         sums over ranks, beside the computation
    termination  finding out that all ranks wait for each other

Nothing is imported until it is used: a process that no `mpirun` started never loads mpi4py.
"""
