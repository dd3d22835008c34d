"""The native engine: whole chunks compiled to machine code by Numba."""
