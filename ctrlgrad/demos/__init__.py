"""Small programs that show what loops and their gradients are for: each computes for seconds and draws what it found.

A module is a demo; its docstring's first line says what of. `docs/recipes` has a page about each, which shows its
source.
"""
