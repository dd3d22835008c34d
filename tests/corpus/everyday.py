"""Programs as users write them: decoders, parsers, alignments, solvers, with several constructs in each."""

from __future__ import annotations

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from corpus.program import between, count, normal, program, scalar


@program(normal(501, 4, 3), normal(502, 3, 3))
def viterbi_score_of_the_best_path(emission, transition):
    """The best path is found backwards by what argmax kept; the score and what lies on the path count."""

    def forward(t, carry):
        score, came_from = carry
        through = score[:, None] + transition
        return cnp.max(through, axis=0) + cnp.take(emission, t, axis=0), came_from.write(t, cnp.argmax(through, axis=0))

    def backward(k, carry):
        state, total = carry
        before = came_from.read(3 - k)[state]
        return before, total + cnp.take(cnp.take(emission, 2 - k, axis=0), before) ** 2

    score, came_from = cg.fori_loop(1, 4, forward, (1.0 * emission[0], cg.TensorArray("int64", 4, (3,))))
    return cnp.max(score), cg.fori_loop(0, 3, backward, (cnp.argmax(score), 0.0))[1]


@viterbi_score_of_the_best_path.twin
def _(emission, transition):
    score, came_from = emission[0], []
    for t in range(1, 4):
        through = score[:, None] + transition
        score, came_from = np.max(through, axis=0) + emission[t], [*came_from, np.argmax(through, axis=0)]
    state, total = np.argmax(score), 0.0
    for t in (2, 1, 0):
        state = came_from[t][state]
        total = total + emission[t][state] ** 2
    return np.max(score), total


@program(normal(503, 4, 3), normal(504, 3, 3))
def edit_distance_with_a_row_that_grows_in_a_scan(a, b):
    """Each row starts from a scalar that becomes an array of one element, in a loop around the one that fills it."""
    cost = np.sqrt(np.sum((a[:, None] - b[None]) ** 2, axis=-1))

    def fill(left, above):
        up, corner, c = above
        best = np.minimum(np.minimum(up + 1.1, left + 1.3), corner + c)
        return best, best

    def next_row(row, costs):
        first = row[0] + 1.05
        _, rest = cg.scan(fill, first, (row[1:], row[:-1], costs))
        return cnp.concatenate([first[None], rest]), None

    return cg.scan(next_row, 1.07 * np.arange(4.0), cost)[0]


@edit_distance_with_a_row_that_grows_in_a_scan.twin
def _(a, b):
    cost = np.sqrt(np.sum((a[:, None] - b[None]) ** 2, axis=-1))
    row = [0.0, 1.07, 2.14, 3.21]
    for i in range(4):
        new = [row[0] + 1.05]
        for j in range(3):
            new = [*new, np.minimum(np.minimum(row[j + 1] + 1.1, new[j] + 1.3), row[j] + cost[i, j])]
        row = new
    return np.stack(row)


@program(normal(505, 4, 3))
def alignments_with_impossible_states(logits):
    """The forward sums of a label with a blank on each side; states that cannot be reached yet hold -inf."""
    rows = logits - cnp.logsumexp(logits, axis=1, keepdims=True)

    def step(alpha, row):
        arrived = cnp.where(np.arange(3) > 0, cnp.roll(alpha, 1), -np.inf)
        return cnp.logaddexp(alpha, arrived) + row, None

    first = cnp.where(np.arange(3) < 2, rows[0], -np.inf)
    alpha, _ = cg.scan(step, first, rows[1:])
    return -cnp.logaddexp(alpha[1], alpha[2])


@alignments_with_impossible_states.twin
def _(logits):
    p = np.exp(logits) / np.sum(np.exp(logits), axis=1, keepdims=True)
    blank, label, end = p[0, 0], p[0, 1], 0.0
    for t in range(1, 4):
        blank, label, end = blank * p[t, 0], (label + blank) * p[t, 1], (end + label) * p[t, 2]
    return -np.log(label + end)


@program(normal(506, 3, 2), normal(507, 2, 2))
def tree_by_shifts_and_reductions(leaves, w):
    """((0 1) 2): a stack of nodes on a TensorArray whose slots are written again."""
    moves = cnp.stack([np.int64(m) for m in (0, 0, 1, 0, 1)])

    def step(carry):
        t, top, taken, nodes = carry

        def shift():
            return top + 1, taken + 1, nodes.write(top, cnp.take(leaves, taken, axis=0))

        def merge():
            return top - 1, taken, nodes.write(top - 2, np.tanh(w @ (0.7 * nodes.read(top - 1) + nodes.read(top - 2))))

        return t + 1, *cg.cond(cnp.take(moves, t) == 0, shift, merge)

    start = (0, 0, 0, cg.TensorArray("float64", 3, (2,), rewritable=True))
    return cg.while_loop(lambda carry: carry[0] < 5, step, start)[3].read(0)


@tree_by_shifts_and_reductions.twin
def _(leaves, w):
    pair = np.tanh(w @ (0.7 * leaves[1] + leaves[0]))
    return np.tanh(w @ (0.7 * leaves[2] + pair))


@program(np.array([0.7, -0.4, 1.2, -1.1, 0.3]))
def kept_rows_and_a_loop_over_them(x):
    """A slot is written for positive elements alone; a second loop runs over as many slots as were written."""

    def keep(i, carry):
        n, kept = carry
        v = cnp.take(x, i)
        return cg.cond(v > 0.0, lambda: (n + 1, kept.write(n, np.sin(v) * x[0])), lambda: (n, kept))

    n, kept = cg.fori_loop(0, 5, keep, (0, cg.TensorArray("float64", 5, ())))
    return cg.fori_loop(0, n, lambda i, total: 1.1 * total + kept.read(i), 0.0)


@kept_rows_and_a_loop_over_them.twin
def _(x):
    kept, total = [np.sin(x[i]) * x[0] for i in (0, 2, 4)], 0.0
    for v in kept:
        total = 1.1 * total + v
    return total


@program(between(0.5, 1.5, 509, 3))
def steps_with_a_hessian_in_a_scan(x):
    """Each step differentiates a function twice and multiplies what it finds."""
    f = lambda v: np.sum(v**3) + cnp.prod(v) - np.sum(v)
    return cg.scan(lambda v, _: (v - 0.02 * (cg.hessian(f)(v) @ cg.grad(f)(v)), np.sum(v)), x, length=2)


@steps_with_a_hessian_in_a_scan.twin
def _(x):
    sums = []
    for _ in range(2):
        a, b, c = x[0], x[1], x[2]
        slope = 3.0 * x**2 + np.stack([b * c, a * c, a * b]) - 1.0
        off = np.stack([c * slope[1] + b * slope[2], c * slope[0] + a * slope[2], b * slope[0] + a * slope[1]])
        sums = [*sums, np.sum(x)]
        x = x - 0.02 * (6.0 * x * slope + off)
    return x, np.stack(sums)


@program(normal(510, 3), scalar(0.4))
def a_tangent_inside_a_while_loop(x, w):
    """Forward mode inside the body; the loop around it is differentiated in its turn."""

    def step(carry):
        y, t = cg.jvp(lambda v: np.tanh(v * w), (carry[1],), (np.cos(carry[1]),))
        return carry[0] + 1, y + t

    return cg.while_loop(lambda carry: carry[0] < 3, step, (0, x))[1]


@a_tangent_inside_a_while_loop.twin
def _(x, w):
    for _ in range(3):
        y = np.tanh(x * w)
        x = y + (1.0 - y * y) * w * np.cos(x)
    return x


@program(normal(511, 3, 2))
def rows_that_grow_until_each_is_long_enough(xs):
    """`vmap` of a loop whose length differs from row to row; the counts weigh the results."""

    def grow(x):
        return cg.while_loop(lambda c: np.sum(c[1] ** 2) < 6.0, lambda c: (c[0] + 1, 1.4 * c[1] + 0.2 * x), (0, x))

    n, y = cg.vmap(grow)(xs)
    return y * (n + 1)[:, None]


@rows_that_grow_until_each_is_long_enough.twin
def _(xs):
    rows = []
    for i in range(3):
        x = xs[i]
        n, y = 0, x
        while np.sum(y**2) < 6.0:
            n, y = n + 1, 1.4 * y + 0.2 * x
        rows = [*rows, y * (n + 1)]
    return np.stack(rows)


@program(normal(512, 2, 2, scale=0.6))
def a_complex_orbit(parts):
    """A complex carry; its parts are the arguments and the results."""
    c = parts[0] + 1j * parts[1]
    z = cg.while_loop(lambda s: s[0] < 4, lambda s: (s[0] + 1, 0.5 * s[1] * s[1] + c), (0, 0.1 * c))[1]
    return cnp.real(z), cnp.imag(z) * cnp.abs(z)


@a_complex_orbit.twin
def _(parts):
    a, b = parts[0], parts[1]
    x, y = 0.1 * a, 0.1 * b
    for _ in range(4):
        x, y = 0.5 * (x * x - y * y) + a, x * y + b
    return x, y * np.sqrt(x * x + y * y)


@program(np.array([0.9, -0.3, 1.7, 0.2]))
def sorted_and_taken_back_in_a_loop(x):
    """A loop's carry is sorted and also indexed in sorted order; the sum of its two largest elements scales all."""

    def step(_, y):
        order = cnp.argsort(y)
        return 0.9 * y[order] + 0.1 * np.sum(cnp.sort(y)[-2:]) * np.sin(y)

    return cg.fori_loop(0, 3, step, x)


@sorted_and_taken_back_in_a_loop.twin
def _(x):
    for _ in range(3):
        ordered = np.sort(x)
        x = 0.9 * ordered + 0.1 * np.sum(ordered[-2:]) * np.sin(x)
    return x


@program(between(0.4, 1.1, 513, 2), count(6))
def an_automaton_that_switches_between_loops(x, n):
    """A state chooses which of three functions runs, and they change it; one of them holds a loop."""

    def ahead(y):
        return np.sin(y), 1

    def inner(y):
        return cg.fori_loop(0, 2, lambda i, v: np.cos(v) * y + 0.1 * i, y), 2

    def back(y):
        return 0.5 * y * y + 0.3, 0

    def step(i, carry):
        y, state = carry
        y, state = cg.switch(state, [ahead, inner, back], y)
        return y + 0.1 * x, state

    return cg.fori_loop(0, n, step, (x, 0))[0]


@an_automaton_that_switches_between_loops.twin
def _(x, n):
    y, state = x, 0
    for _ in range(n):
        if state == 0:
            y, state = np.sin(y), 1
        elif state == 1:
            before = y
            for i in range(2):
                y = np.cos(y) * before + 0.1 * i
            state = 2
        else:
            y, state = 0.5 * y * y + 0.3, 0
        y = y + 0.1 * x
    return y
