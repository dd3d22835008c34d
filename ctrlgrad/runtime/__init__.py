"""Runtime: stacks while a program runs, and loops that run in chunks.

`stack` has the one class of stacks, and where its blocks lie; `chunks` cuts a loop into chunks whose blocks a memory
manager may move.
"""
