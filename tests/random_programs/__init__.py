"""Random programs: whole programs with control flow, drawn from a seed, run and differentiated by every judge.

kinds       what a variable of a program holds
program     a program as data: lines, loops, branches, calls
source      a program as Python source, in two forms: with ctrlgrad's constructs, and as a plain NumPy twin
running     the two forms as functions
choices     the decisions that a program is a function of: drawn from a seed, repeated, shrunk
writer      the scope in which a program is written
operations  what a line can be: arithmetic; parts, arrays, arrangements, selections, numbers, chances, compounds: more
carries     what reads carried values as they are
constructs  what a block is; loops, branches: what a loop, a branch or a call can be
generate    the program of a seed
expected    what a program should give
checks      what must hold for every program on the reference engine
engines     properties of the other engines, with budgets and without
campaign    any number of programs: `python -m tests.random_programs --engine native --count 20000`
"""
