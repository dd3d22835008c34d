"""GradBench (github.com/gradbench/gradbench) on ctrlgrad: its evals ask this tool for values and derivatives.

    gradbench run --eval "gradbench eval hello" --tool "python -m benchmarks.gradbench"

Each module of GradBench is a file here, written as plain loops on ctrlgrad's public names. What sizes a module's arrays
have is left open, so that it is compiled once, when it is defined; where a size decides how the program is written
(the matrix of `det`), each size is compiled when it is first met, before the runs that are timed.

    python -m benchmarks --only 'gradbench-*' --cores 1 --gradbench-tool NAME=COMMAND

compares it with another tool for GradBench, which COMMAND starts, on the inputs of `inputs.py`: `with_tool.py`.
"""
