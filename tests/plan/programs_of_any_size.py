"""Small programs of arrays whose sizes are known only at run time."""

from __future__ import annotations

import numpy as np
from plan.small import small, x5

import ctrlgrad as cg
import ctrlgrad.numpy as cnp

ANY_CUBE = (cg.TensorSpec((None,) * 3),)
cube = np.sin(np.arange(60.0)).reshape(3, 4, 5)


@small(np.arange(120.0).reshape(2, 3, 4, 5), signature=(cg.TensorSpec((None,) * 4),))
def sizes_named_as_the_arguments(x):
    return cnp.real(cnp.fft.fft(x)) * 2


@small(x5, signature=(cg.TensorSpec((None,)),))
def a_carry_that_grows(x):
    return cg.fori_loop(0, 3, lambda t, c: (cnp.concat([c[0], x]), np.sin(c[0])), (x, x))


@small(x5, np.array([3, 1, 4, 0, 2]), signature=(cg.TensorSpec((None,)), cg.TensorSpec((None,), "int64")))
def a_carry_that_doubles_where_it_is_full(x, i):
    """The larger array is filled from the one that it replaces, which another carry reads beside the update."""

    def body(t, s):
        rows = cg.cond(t >= s[0].shape[0] - 5, lambda: cnp.concat([s[0], np.flip(s[0])]), lambda: s[0])
        return cnp.at(rows)[t].set(s[1][0]), s[1] + rows[i]

    return cg.fori_loop(0, 9, body, (x * 1.0, x * 2.0))


@small(x5, signature=(cg.TensorSpec((None,)),))
def carry_updated_part_by_part(x):
    """The joined parts are computed in the carry's memory, together with what reads the whole carry."""

    def body(_, y):
        slope = cnp.concat([x[:1], x[1:] * np.sin(y + x)[:-1]])
        return y * 0.5 + slope * y

    return cg.fori_loop(0, 3, body, x * 1.0)


def _updated_once(update):
    """A loop whose carry is updated in its first iteration."""
    return lambda x: cg.fori_loop(0, 3, lambda t, y: cg.cond(t < 1, lambda: update(y), lambda: y), np.sin(x))


@small(cube, order=1, signature=(cg.TensorSpec((3, None, 5)),))
def slice_set_in_a_branch_and_summed_backwards(x):
    """The kernel that zeroes the slice's cotangent also sums it.

    The slice is shorter than the whole by a size known only at run time, and none of its elements lies in the next row.
    """
    return _updated_once(lambda y: cnp.at(y)[:, 1:].set(np.sum(y)))(x)


@small(cube, order=1, signature=ANY_CUBE)
def slice_of_the_last_axis_multiplied_by_itself(x):
    return _updated_once(lambda y: cnp.at(y)[:, :, 2:].multiply(y[:, :, 2:]))(x)


@small(cube, order=1, signature=ANY_CUBE)
def slice_with_steps_added_to_itself(x):
    return _updated_once(lambda y: cnp.at(y)[::2, 1::2, ::-1].add(np.cos(y[::2, 1::2, ::-1])))(x)


@small(cube, order=1, signature=ANY_CUBE)
def slice_of_a_transposed_array_multiplied_by_itself(x):
    def update(y):
        turned = cnp.transpose(y)
        return cnp.transpose(cnp.at(turned)[1:, 1:].multiply(turned[1:, 1:]))

    return _updated_once(update)(x)
