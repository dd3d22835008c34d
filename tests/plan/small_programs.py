"""Small programs that share memory in every way that placement knows."""

from __future__ import annotations

import numpy as np
from plan import programs_of_any_size, ragged_programs  # noqa: F401  (add their own)
from plan.small import SMALL as SMALL
from plan.small import small, square, x2, x5
from plan.small import wide as wide

import ctrlgrad as cg
import ctrlgrad.numpy as cnp


@small(x2, np.zeros((3, 2)))
def carry_written_after_its_successor(h, rows):
    """The new carry is computed first, and the old one is read after it."""
    return cg.fori_loop(0, 3, lambda t, s: (s[0] * 0.5, cnp.at(s[1])[t].set(s[0])), (h, rows))[1]


@small(x2, np.zeros((2, 2)))
def carry_read_by_a_kernel_of_another_space_after_its_successor(h, total):
    return cg.fori_loop(0, 3, lambda t, s: (s[0] * 0.5, s[1] + s[0][:, None] * s[0]), (h, total))


@small(x5)
def rows_read_before_another_is_written(x):
    """The array of all rows is read after the stack has changed."""
    rows = cg.TensorArray(np.float64, 3, element_shape=(5,), rewritable=True).unstack(np.stack([x, x + 1, x + 2]))
    before = rows.stack()
    return np.flip(before, 0) + rows.write(1, x * 5).stack() @ np.ones((5, 5)), before


@small(x5, np.int64(3))
def as_many_rows_as_a_number_says(x, n):
    return cg.TensorArray(np.float64, n, element_shape=(5,)).write(0, x).read(0)


@small(np.stack([x5, x5 + 1]))
def rows_of_a_stack_that_goes_on(x):
    def body(t, s):
        rows = cg.TensorArray(np.float64, element_shape=(5,), rewritable=True)
        rows = cg.fori_loop(0, 2, lambda i, r: r.write(i, s[i] * 2), rows)
        before, after = rows.stack(), cg.fori_loop(0, 1, lambda i, r: r.write(i, s[0]), rows).stack()
        return s * before[0] + after[1]

    return cg.fori_loop(0, 3, body, x)


@small(square, order=1)
def totals_of_dead_values(a):
    """Totals may not take the memory of their elements, which are read while they are written."""
    return cg.fori_loop(0, 3, lambda t, x: np.flip(cnp.cumsum(x * 1.1, 0).T) * 0.1 + np.sin(x), a)


@small(square + np.eye(5))
def system_of_dead_values(a):
    """The solution may not take the memory of the matrix or of the right-hand side, which are read while it is
    written."""
    return cg.fori_loop(0, 3, lambda t, x: np.flip(np.linalg.solve(x * 1.1, x + 0.1)) @ np.eye(5), a)


@small(square + 2 * np.eye(5), order=1)
def factors_and_their_gradient(a):
    def body(t, s):
        lower = cnp.linalg.cholesky(s[0] @ s[0].T + np.eye(5))
        return lower + s[0], s[1] + cnp.linalg.det(lower + s[0]) + cnp.linalg.slogdet(s[0])[1]

    return cg.fori_loop(0, 3, body, (a, 0.0))


@small(x5, np.array([3, 1, 4, 0, 2]))
def carry_gathered_after_its_successor(h, i):
    return cg.fori_loop(0, 3, lambda t, s: (s[0] * 0.5, np.sort(s[0][i]) + s[1]), (h, h))


@small(x5, np.zeros(5))
def carry_branched_on_after_its_successor(h, total):
    def body(t, s):
        following = s[0] * 0.5
        return following, cg.cond(s[1][0] < 0.1, lambda: np.flip(s[0]) @ np.ones((5, 5)), lambda: s[1] + s[0])

    return cg.fori_loop(0, 3, body, (h, total))


@small(x5, np.zeros(5))
def carry_captured_by_an_inner_loop_after_its_successor(h, total):
    def body(t, s):
        following = s[0] * 0.5
        return following, cg.fori_loop(0, 2, lambda u, c: np.flip(c) + np.sort(s[0]), s[1])

    return cg.fori_loop(0, 3, body, (h, total))


@small(x2, x2 + 1, x2 + 2)
def carries_that_change_places(a, b, c):
    return cg.fori_loop(0, 5, lambda t, s: (s[1], s[2], s[0]), (a * 2, b * 2, c * 2))


@small(x2, x2 + 1)
def carry_that_moves_on(a, b):
    return cg.fori_loop(0, 5, lambda t, s: (s[1] + 1, s[0]), (a, b))


@small(x5, np.array([3, 1, 4, 0, 2]))
def gather_of_a_dead_value(x, i):
    y = np.sin(x)
    z = y[i]
    return np.exp(z[i]) + 1


@small(square)
def transpose_of_a_dead_value(a):
    b = np.sin(a)
    c = b.T * 2 + b
    return c.T @ c.T


@small(x5)
def update_of_what_is_read_elsewhere(x):
    y = np.sin(x)
    z = cnp.at(y)[0:2].set(y[2:4] * y[1:3])
    return cnp.at(z)[1:4].add(z[0:3])


@small(x5)
def update_of_what_is_needed(x):
    y = np.sin(x)
    z = cnp.at(y)[0:2].set(0.0)
    return np.sum(z * 2) + np.sum(y[1:])


@small(x5, True)
def branch_over_what_the_other_reads(x, p):
    y = np.sin(x)
    z = np.cos(x) @ np.ones((5, 5))
    return cg.cond(p, lambda: (cnp.at(y)[0].set(2.0), z * 2), lambda: (z * 3, y * 1.0))


@small(x5, True)
def branch_whose_results_are_wanted_nowhere(x, p):
    return tuple(map(np.sort, branch_over_what_the_other_reads(x, p)))


@small(x5, True)
def branch_that_passes_on(x, p):
    y = np.sin(x)
    return cg.cond(p, lambda: (x, y), lambda: (y, x))


@small(x5, True)
def value_needed_after_a_branch(x, p):
    y, z = np.sin(x), np.cos(x)
    w = cg.cond(p, lambda: np.exp(np.flip(np.sin(y[::-1]) @ np.ones((5, 5)))), lambda: np.sort(y))
    return np.sort(w) + np.flip(z) @ np.ones((5, 5)) + np.flip(y)


@small(x5)
def argument_returned_twice(x):
    return x, x, np.sin(x)


@small(x5)
def captured_value_in_a_loop(x):
    y = np.sin(x)

    def body(t, c):
        a = c + y
        return np.sin(a[::-1]) @ (np.ones((5, 5)) + x)

    return cg.fori_loop(0, 4, body, x * 1.0)


@small(x5)
def captured_stack_in_a_loop(x):
    """A loop captures an array of rows and writes to it at the start of each iteration."""
    rows = cg.TensorArray("float64", rewritable=True).push(x).push(x * 2)
    found = cg.fori_loop(0, 3, lambda t, c: c + rows.write(0, c).read(0) + rows.read(0), x)
    return found, rows.stack()


@small(x5)
def array_pushed_and_updated(x):
    rows = cg.TensorArray("float64", rewritable=True).push(np.sin(x)).push(x)
    other = rows.push(x * 3)
    third = rows.push(x * 4)
    return rows.stack(), other.stack(), third.stack()


@small(x5)
def arrays_that_change_places(x):
    a = cg.TensorArray("float64", rewritable=True).push(x).push(x * 2)
    b = cg.TensorArray("float64", rewritable=True).push(x * 3)
    a, b = cg.fori_loop(0, 3, lambda t, s: (s[1].push(x * t), s[0]), (a, b))
    return a.stack(), b.stack()


@small(x5)
def array_of_two_carries(x):
    a = cg.TensorArray("float64", rewritable=True).push(x)
    a, b = cg.fori_loop(0, 3, lambda t, s: (s[0].push(x * t), s[1].push(x)), (a, a))
    return a.stack(), b.stack()


@small(x2, order=1)
def popped_row_kept_over_another_pop(x):
    shorter = cg.TensorArray("float64", rewritable=True).push(np.sin(x)).push(x * x)
    longer = shorter.write(shorter.size(), np.cos(x) * x)
    return np.sum(shorter.stack() ** 2) + np.sum(np.sin(longer.stack() ** 2))


@small(x5)
def row_needed_after_further_pushes(x):
    rows = cg.TensorArray("float64", rewritable=True)
    y = np.sin(x)
    rows = rows.push(y)
    rows = rows.push(y[::-1]).push(y + 1)
    return rows.stack(), np.cos(y)[::-1]


@small(x2, x5)
def parts_of_rows(x, y):
    def body(t, rows):
        return rows.push(cnp.concat([np.sin(x * t), np.cos(y * t)]))

    return cg.fori_loop(0, 3, body, cg.TensorArray("float64", rewritable=True)).stack()


@small(x5)
def row_that_updates_what_is_needed(x):
    rows = cg.TensorArray("float64", rewritable=True).push(x)
    y = np.sin(x)
    return rows.push(y.at[1:3].set(x[:2])).stack(), y[::-1] * 2


@small(x5)
def row_updated_while_its_array_grows(x):
    rows = cg.TensorArray("float64", rewritable=True).push(x)
    y = np.sin(x)
    rows = rows.push(x * 2)
    return rows.push(y.at[1:3].set(x[:2])).stack()


@small(x5, order=1)
def gradient_of_a_loop(x):
    return cg.while_loop(lambda c: np.sum(c) < 9, lambda c: np.sin(c) * c + np.exp(c) + 1, x)


@small(x5, 3, order=1)
def gradient_of_nested_loops(x, n):
    inner = lambda c: cg.fori_loop(0, n, lambda t, d: np.sin(d) * d, c)
    return cg.fori_loop(0, n, lambda t, c: cg.cond(np.sum(c) > 0, lambda: inner(c), lambda: c * c), x)


@small(np.ones((2, 32)), wide[:, :32].copy(), 3)
def product_packed_before_a_loop(x, w, n):
    return cg.fori_loop(0, n, lambda t, c: np.tanh(c @ w) @ np.cos(c.T @ c), x)


@small(np.ones((2, 32)), np.stack([wide[:, :32], wide[:, 1:]]), 3)
def product_with_another_matrix_each_time(x, ws, n):
    return cg.fori_loop(0, n, lambda t, c: np.tanh(c @ ws[t % 2]), x)


@small(np.ones((2, 32)), wide[:, :32].copy(), wide[:, 1:].copy(), 3)
def products_with_two_matrices(x, v, w, n):
    return cg.fori_loop(0, n, lambda t, c: np.tanh(c @ w) @ v, x)


@small(x5)
def update_of_all_in_another_order(x):
    y = np.sin(x)
    return cnp.at(y)[::-1].set(x * 2) + y


@small(x5, 0)
def row_read_in_a_loop_that_carries_its_stack(x, n):
    y = np.sin(x)
    rows = cg.TensorArray("float64", rewritable=True).push(y)

    def body(t, s):
        return cg.fori_loop(0, n, lambda u, r: r.push(s[1]), s[0]), np.sort(y) + s[1][::-1]

    rows, z = cg.fori_loop(0, 6, body, (rows, x))
    return rows.stack(), z


@small(x5, x5 + 1, order=1)
def gradient_of_a_loop_with_a_captured_value(x, w):
    return cg.fori_loop(0, 5, lambda t, c: np.sin(c * w), x)


@small(x5, order=1)
def gradient_of_a_loop_that_reads_what_it_fills(x):
    rows = cg.TensorArray("float64").push(x)
    rows, y = cg.fori_loop(0, 6, lambda t, s: (s[0].push(np.sin(s[0].read(t)) * s[1]), np.cos(s[1])), (rows, x))
    return rows.stack(), y


@small(np.array(0.3), np.arange(9.0), order=1)
def gradient_of_a_loop_whose_carry_shrinks(s, y):
    """A chunk that is run again begins with a smaller array than the loop did."""

    def body(t, c):
        return c[0][1:] * 1.01, np.sin(c[1]) + np.sum(c[0]) * 1e-3

    return cg.fori_loop(0, 7, body, (cg.unknown_dims(y, 0), s))[1]


@small(x5, np.array([1, 3, 1, 0, 1]))
def scatter_that_meets_itself(x, i):
    return cnp.at(np.sin(x))[i].set(np.arange(5.0))


@small(x5, np.int64(4), True)
def array_of_a_late_size_passed_on_and_needed_after(x, k, p):
    y, z = np.sort(x[:k]), np.flip(np.sort(x[: k - 1]))
    return np.sort(cg.cond(p, lambda: y, lambda: z)), np.flip(y) @ y, np.flip(z) @ z


@small(x5, np.arange(5.0))
def buffers_of_two_sizes(x, y):
    product = np.sin(y) @ np.ones((5, 6))
    return np.sort(np.sin(cnp.flip(product)))


@small(x5, True)
def array_given_by_a_branch_and_needed_after_it(x, p):
    rows = cg.TensorArray("float64", rewritable=True).push(np.sin(x))
    a, b = cg.cond(p, lambda: (rows, rows.push(x)), lambda: (rows.push(x * 2), rows))
    return a.stack(), b.stack(), rows.stack()


@small(x5, 3)
def array_from_outside_goes_on_in_a_loop(x, n):
    rows = cg.TensorArray("float64", rewritable=True).push(np.sin(x))

    def body(t, s):
        return rows, s[0].push(x * t), s[1], s[1]

    return [a.stack() for a in cg.fori_loop(0, n, body, (rows, rows, rows, rows))]


def _distances(matrix, point):
    return cnp.sum((matrix - point) ** 2, axis=1)


matrix = np.cos(np.arange(36.0)).reshape(18, 2)
points = np.sin(np.arange(8.0)).reshape(4, 2)
ANY_MATRICES = (cg.TensorSpec((None, None)), cg.TensorSpec((None, None)))


@small(matrix, points, signature=ANY_MATRICES)
def nearest_point(matrix, points):
    """The rows of an invariant matrix are reduced, so its columns are laid out once before the loop."""
    return cg.fori_loop(0, points.shape[0], lambda t, s: s + cnp.argmin(_distances(matrix, points[t])), 0)


@small(matrix, points, order=1, signature=ANY_MATRICES)
def nearest_of_some_points(matrix, points):

    def body(t, s):
        distances = _distances(cg.stop_gradient(matrix), points[t])
        return s + cnp.sum((matrix[cnp.argmin(distances)] - points[t]) ** 2) + np.min(distances)

    return cg.fori_loop(0, points.shape[0], body, 0.0)


@small(matrix, points)
def rows_of_a_matrix_that_changes(matrix, points):
    def body(t, c):
        distances = _distances(c[0], points[t])
        return c[0] + distances[:, None], c[1] + distances

    return cg.fori_loop(0, 3, body, (matrix, np.zeros(18)))


@small(matrix, points)
def rows_of_a_matrix_that_stays_in_an_inner_loop(matrix, points):
    def body(t, m):
        found = cg.fori_loop(0, 4, lambda i, s: s + _distances(m, points[i]), np.zeros(18))
        return m + 0.1 * found[:, None]

    return cg.fori_loop(0, 3, body, matrix)


@small(np.sin(np.arange(96.0)).reshape(3, 16, 2), points)
def rows_of_a_part_that_moves(matrices, points):
    return cg.fori_loop(0, 3, lambda t, s: s + _distances(matrices[t], points[t]), np.zeros(16))


@small(np.sin(np.arange(680.0)).reshape(40, 17), np.ones((3, 17)), signature=ANY_MATRICES)
def rows_that_turn_out_to_be_long(matrix, points):
    zeros = matrix[:, 0] * 0.0
    return cg.fori_loop(0, points.shape[0], lambda t, s: s + _distances(matrix, points[t]), zeros)


@small(matrix, points)
def rows_of_a_matrix_beside_another_array(matrix, points):
    """The loop makes another array, which would fit into the memory of the matrix's columns."""

    def body(t, s):
        turned = np.sin(cnp.transpose(matrix) * s)
        return _distances(matrix, points[t]) + cnp.sum(turned[:, ::-1] * turned)

    return cg.fori_loop(0, 3, body, np.zeros(18))


@small(np.sin(np.arange(30.0)).reshape(2, 15))
def transform_of_rows(x):
    return cnp.real(cnp.fft.fft(x)) + cnp.imag(cnp.fft.fft(x))
