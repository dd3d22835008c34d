"""Gradients of loops whose number of iterations depends on data, in float64, small bodies.

    map      s' = a sin(s) + b                        while i < n and the first entry of s < LIMIT
    branch   v' = v + 0.1 (a - v)   if v < 1          likewise; the other branch runs about every seventh iteration
                  r tanh(v)         otherwise
    nested   z - y = 0.1 (a cos(z) - z**3), y' = z    likewise; solved for z by Newton's method until the residual is
                                                      below TOLERANCE: implicit Euler steps

Each loop also adds the new state to a total; the loss is the total's mean over the iterations, so that the gradient
has a part from every iteration. `map` runs on a scalar and on a vector. Where a system needs an upper bound of the
number of iterations, it gets the number itself.
"""

LIMIT = 1e3
TOLERANCE = 1e-10
