"""Random programs: whole programs with control flow, written by Hypothesis, run and differentiated by every judge.

kinds       what a variable of a program holds
program     a program as data: lines, loops, branches, calls
source      a program as Python source, in two forms: with ctrlgrad's constructs, and as a plain NumPy twin
running     the two forms as functions
writer      the scope in which a program is written
operations  what a line can be: arithmetic; parts, arrays: the rest of it
constructs  what a loop, branch or call can be
strategy    the Hypothesis strategy
checks      what must hold for every program
campaign    any number of programs: `python -m tests.random_programs --count 20000`
"""
