"""Random numbers from keys: a function of a key and a shape, the same in every engine, inside loops and outside.

A key is two uint32. Numbers come from the block cipher Threefry-2x32 with 20 rounds, which encrypts a counter with the
key. Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), section 4.2. The
numbers are those of `jax.random` for the same key (its partitionable Threefry): to the bit where they are bits,
integers or uniform, else to the last digits. A key is used once: for more numbers split it.

    >>> key, one = cg.random.split(cg.random.key(0))
    >>> cg.random.uniform(one, (3,)).dtype
    dtype('float64')

In a loop the key is carried:

    >>> def walk(key, steps):
    ...     def step(c):
    ...         i, key, x = c
    ...         key, now = cg.random.split(key)
    ...         return i + 1, key, x + cg.random.normal(now)
    ...     return cg.while_loop(lambda c: c[0] < steps, step, (0, key, 0.0))[2]
    >>> float(walk(cg.random.key(1), 10)) == float(walk(cg.random.key(1), 10))
    True
"""

from ctrlgrad.random.distributions import (
    ball,
    bernoulli,
    beta,
    bits,
    categorical,
    cauchy,
    chisquare,
    choice,
    dirichlet,
    double_sided_maxwell,
    exponential,
    f,
    gamma,
    generalized_normal,
    geometric,
    gumbel,
    laplace,
    loggamma,
    logistic,
    lognormal,
    maxwell,
    multivariate_normal,
    normal,
    orthogonal,
    pareto,
    permutation,
    poisson,
    rademacher,
    randint,
    rayleigh,
    t,
    triangular,
    truncated_normal,
    uniform,
    wald,
    weibull_min,
)
from ctrlgrad.random.keys import PRNGKey, clone, fold_in, key, key_data, key_impl, split, threefry2x32, wrap_key_data

__all__ = [
    "PRNGKey",
    "ball",
    "bernoulli",
    "beta",
    "bits",
    "categorical",
    "cauchy",
    "chisquare",
    "choice",
    "clone",
    "dirichlet",
    "double_sided_maxwell",
    "exponential",
    "f",
    "fold_in",
    "gamma",
    "generalized_normal",
    "geometric",
    "gumbel",
    "key",
    "key_data",
    "key_impl",
    "laplace",
    "loggamma",
    "logistic",
    "lognormal",
    "maxwell",
    "multivariate_normal",
    "normal",
    "orthogonal",
    "pareto",
    "permutation",
    "poisson",
    "rademacher",
    "randint",
    "rayleigh",
    "split",
    "t",
    "threefry2x32",
    "triangular",
    "truncated_normal",
    "uniform",
    "wald",
    "weibull_min",
    "wrap_key_data",
]


def __dir__() -> list[str]:
    return sorted(__all__)
