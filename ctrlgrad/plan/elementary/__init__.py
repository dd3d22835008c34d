"""Elementary functions as expressions of primitives.

`table` has each function with its largest error, `complex` those of complex numbers, `constants` the coefficients for
each floating-point format, and `notation` short names for operations, so that functions read as their formulas.
"""
