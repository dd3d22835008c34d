"""Small programs that show uses of loops and their gradients; each computes for seconds and draws its result.

A module is a demo, and the first line of its docstring is the title. `docs/recipes` has a page for each.
"""
