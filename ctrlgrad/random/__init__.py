"""Random numbers from keys: a function of a key and a shape, the same in every engine, inside loops and outside.

A key is two uint32. Numbers come from the block cipher Threefry-2x32 with 20 rounds, which encrypts a counter with the
key. Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), section 4.2. The
numbers are those of `jax.random` for the same key (its partitionable Threefry): to the bit where they are bits,
integers or uniform, else to the last digits. A key is used once: for more numbers split it.
`keys` has the cipher, `distributions` the rest.

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

from ctrlgrad.frontend.functions import publish
from ctrlgrad.random.distributions import *
from ctrlgrad.random.keys import *

publish(__name__, is_facade=True)
