"""Small programs that show uses of loops and their gradients; each computes for seconds and draws its result.

A module is a demo, and the first line of its docstring is the title: `adaptive_solvers`, `alignments`, `contacts`,
`decoding`, `implicit_layers`, `rollouts`, `variable_length`. `catalogue` lists them, and `docs/recipes` has a page for
each.
"""
