"""The size sweep: short programs of one or two ops at sizes from 0 to ten million elements, on machines of every kind.

sizes     sizes drawn evenly in their logarithm, with more weight beside the numbers that code compares sizes with
forms     what a program can be: source for any array module, and the shapes of its arguments
program   a program of a seed: form, sizes, dtype, how arguments lie, which sizes are unknown, threads, vectors
judge     one program run natively, its values against NumPy and its gradients against finite differences, the reference
          engine, and for a share of the programs JAX
sweep     any number of programs, in forked children: `python -m tests.size_sweep --count 20000 --seed 1`
"""
