"""Random programs written for JAX, read by `ctrlgrad.from_jax` and judged by JAX itself.

`generate` makes a program from a seed: a nest of `while_loop`, `fori_loop`, `scan`, `cond`, `switch`, `jit`,
`checkpoint` and functions with rules of their own over array functions. `judge` compares values with JAX's, gradients
with JAX's forward mode (which loops have there) or, where there is none, with central differences, and the modes here
with each other.
"""
