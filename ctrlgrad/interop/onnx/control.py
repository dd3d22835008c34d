"""ONNX operators with graphs or time steps: loops, branches, recurrent cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad import tree
from ctrlgrad.frontend.apply import value_in
from ctrlgrad.frontend.branches import cond
from ctrlgrad.frontend.loops import scan, unknown_dims, while_loop
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.tensor_array import TensorArray
from ctrlgrad.frontend.trace import recorder
from ctrlgrad.frontend.tracer import Traced, leaves_of
from ctrlgrad.interop.onnx.arrays import reversed_rows
from ctrlgrad.interop.onnx.operators import Body, Node, entry, is_array, known_shape, recorded
from ctrlgrad.ir import close
from ctrlgrad.transforms.vmap import vmap

# Recurrent networks: `RNN`, `GRU` and `LSTM`, one `scan` for each direction.
#
# A direction's weights are W[gates * hidden, inputs], R[gates * hidden, hidden] and, where there are biases, B[2 *
# gates * hidden]: those of W before those of R. Rows whose sequence has ended keep their state, and their outputs are
# zero.


Activation = Callable[[Any], Any]

# Activations of two parameters, and their defaults.
_ACTIVATIONS: dict[str, tuple[Callable[[Any, Any, Any], Any], float, float]] = {
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "elu": (lambda x, a, b: cnp.where(x >= 0, x, a * cnp.expm1(cnp.minimum(x, x * 0))), 1.0, 0.0),
    "hardsigmoid": (lambda x, a, b: cnp.clip(a * x + b, 0, 1), 0.2, 0.5),
    "leakyrelu": (lambda x, a, b: cnp.where(x >= 0, x, a * x), 0.01, 0.0),
    "relu": (lambda x, a, b: cnp.relu(x), 0.0, 0.0),
    "scaledtanh": (lambda x, a, b: a * cnp.tanh(b * x), 1.0, 1.0),
    "sigmoid": (lambda x, a, b: cnp.sigmoid(x), 0.0, 0.0),
    "softplus": (lambda x, a, b: cnp.logaddexp(x, x * 0), 0.0, 0.0),
    "softsign": (lambda x, a, b: x / (1 + cnp.abs(x)), 0.0, 0.0),
    "tanh": (lambda x, a, b: cnp.tanh(x), 0.0, 0.0),
    "thresholdedrelu": (lambda x, a, b: cnp.where(x > a, x, x * 0), 1.0, 0.0),
}


@dataclass(frozen=True)
class Cell:
    """The weights of one direction, and its settings."""

    w: Any
    r: Any
    w_bias: Any
    r_bias: Any
    peepholes: Any
    activations: Sequence[Activation]
    clip: float | None
    coupled: bool
    reset_after: bool

    @property
    def hidden(self) -> int:
        return int(self.r.shape[-1])

    def clipped(self, x: Any) -> Any:
        return x if self.clip is None else cnp.clip(x, -self.clip, self.clip)

    def gates(self, x: Any, count: int) -> list[Any]:
        """The parts of x[..., count * hidden]."""
        return list(cnp.split(x, count, -1))

    def matrix(self, i: int) -> Any:
        """The part of R for one gate, ready to be multiplied from the right."""
        return cnp.transpose(self.r[i * self.hidden : (i + 1) * self.hidden])


# A step maps (cell, W x + its bias, state) to the new state, whose first part is the output.
Step = Callable[[Cell, Any, Sequence[Any]], list[Any]]


def _rnn(cell: Cell, given: Any, state: Sequence[Any]) -> list[Any]:
    (h,) = state
    (f,) = cell.activations
    return [f(cell.clipped(given + cnp.matmul(h, cell.r.T) + cell.r_bias))]


def _gru(cell: Cell, given: Any, state: Sequence[Any]) -> list[Any]:
    (h,) = state
    f, g = cell.activations
    update, reset, new = cell.gates(given, 3)
    update_bias, reset_bias, new_bias = cell.gates(cell.r_bias, 3)
    z = f(cell.clipped(update + cnp.matmul(h, cell.matrix(0)) + update_bias))
    r = f(cell.clipped(reset + cnp.matmul(h, cell.matrix(1)) + reset_bias))
    if cell.reset_after:
        candidate = g(cell.clipped(new + r * (cnp.matmul(h, cell.matrix(2)) + new_bias)))
    else:
        candidate = g(cell.clipped(new + cnp.matmul(r * h, cell.matrix(2)) + new_bias))
    return [(1 - z) * candidate + z * h]


def _lstm(cell: Cell, given: Any, state: Sequence[Any]) -> list[Any]:
    h, c = state
    f, g, out = cell.activations
    enter, leave, forget, new = cell.gates(given + cnp.matmul(h, cell.r.T) + cell.r_bias, 4)
    see_enter, see_leave, see_forget = cell.gates(cell.peepholes, 3)
    i = f(cell.clipped(enter + see_enter * c))
    kept = 1 - i if cell.coupled else f(cell.clipped(forget + see_forget * c))
    c = kept * c + i * g(cell.clipped(new))
    o = f(cell.clipped(leave + see_leave * c))
    return [o * out(c), c]


@dataclass(frozen=True)
class Kind:
    """A recurrent operator: its step, the gates of its weights, the parts of its state, its activations."""

    step: Step
    gates: int
    states: int
    activations: tuple[str, ...]


_KINDS = {
    "RNN": Kind(_rnn, 1, 1, ("Tanh",)),
    "GRU": Kind(_gru, 3, 1, ("Sigmoid", "Tanh")),
    "LSTM": Kind(_lstm, 4, 2, ("Sigmoid", "Tanh", "Tanh")),
}


def _with_parameters(fn: Callable[[Any, Any, Any], Any], a: float, b: float) -> Activation:
    return lambda x: fn(x, a, b)


def _activations(node: Node, kind: Kind, directions: int) -> list[list[Activation]]:
    """The activations of each direction. Parameters go in order to the functions that take any."""
    names = node.get("activations") or list(kind.activations) * directions
    alphas, betas = list(node.get("activation_alpha") or ()), list(node.get("activation_beta") or ())
    found: list[Activation] = []
    for name in names:
        if name.lower() not in _ACTIVATIONS:
            raise node.unsupported(f"the activation {name!r} is not known")
        fn, alpha, beta = _ACTIVATIONS[name.lower()]
        a = alphas.pop(0) if alphas and name.lower() in _TAKES_ALPHA else alpha
        b = betas.pop(0) if betas and name.lower() in _TAKES_BETA else beta
        found.append(_with_parameters(fn, a, b))
    each = len(kind.activations)
    return [found[d * each : (d + 1) * each] for d in range(directions)]


_TAKES_ALPHA = frozenset(["affine", "elu", "hardsigmoid", "leakyrelu", "scaledtanh", "thresholdedrelu"])
_TAKES_BETA = frozenset(["affine", "hardsigmoid", "scaledtanh"])


@entry("RNN", "GRU", "LSTM")
def _recurrent(
    node: Node,
    x: Any,
    w: Any,
    r: Any,
    bias: Any = None,
    lengths: Any = None,
    h: Any = None,
    c: Any = None,
    peepholes: Any = None,
) -> Any:
    kind = _KINDS[node.name]
    if node.get("layout", 0):
        x = cnp.swapaxes(x, 0, 1)
        h, c = (s if s is None else cnp.swapaxes(s, 0, 1) for s in (h, c))
    directions, hidden = w.shape[0], r.shape[-1]
    time, rows = x.shape[0], x.shape[1]
    direction = node.get("direction", "forward")
    activations = _activations(node, kind, directions)
    nothing: Any = lambda n: np.zeros(n, x.dtype)
    outputs, last = [], []
    for d in range(directions):
        both = nothing(2 * kind.gates * hidden) if bias is None else bias[d]
        cell = Cell(
            w[d],
            recorded(r[d]),
            both[: kind.gates * hidden],
            both[kind.gates * hidden :],
            nothing(3 * hidden) if peepholes is None else peepholes[d],
            activations[d],
            node.get("clip"),
            bool(node.get("input_forget", 0)),
            bool(node.get("linear_before_reset", 0)),
        )
        backwards = direction == "reverse" or d == 1
        initial = [nothing((rows, hidden)) if s is None else s[d] for s in (h, c)[: kind.states]]
        given = _reversed(x, lengths) if backwards else x
        state, found = _run(kind.step, cell, given, initial, lengths)
        outputs.append(_reversed(found, lengths) if backwards else found)
        last.append(state)
    y = cnp.stack(outputs, 1) if time else nothing((0, directions, rows, hidden))
    states = [cnp.stack([state[k] for state in last]) for k in range(kind.states)]
    if node.get("layout", 0):
        y, states = cnp.transpose(y, (2, 0, 1, 3)), [cnp.swapaxes(s, 0, 1) for s in states]
    return y, *states


def _reversed(x: Any, lengths: Any) -> Any:
    return cnp.flip(x, 0) if lengths is None else reversed_rows(x, lengths)


def _run(step: Step, cell: Cell, x: Any, initial: list[Any], lengths: Any) -> tuple[list[Any], Any]:
    """The last state, and the outputs x[time, rows, hidden]."""
    # All products with the inputs at once.
    given = cnp.matmul(x, cnp.swapaxes(cell.w, -1, -2)) + cell.w_bias

    def one(state: list[Any], at: Any) -> tuple[list[Any], Any]:
        row, t = at
        new = step(cell, row, state)
        if lengths is None:
            return new, new[0]
        lives = cnp.expand_dims(t < lengths, -1)
        kept = [cnp.where(lives, a, b) for a, b in zip(new, state, strict=True)]
        return kept, cnp.where(lives, new[0], np.zeros((), new[0].dtype))

    state, found = scan(one, [recorded(s) for s in initial], (given, np.arange(x.shape[0])))
    return state, found


# Loops and branches: `Loop`, `Scan`, `If`.
#
# `Loop` is a `scan` where its trip count is known and its condition is a constant, a `while_loop` otherwise: then the
# rows of its scan outputs are as many as it has run. Where it carries a sequence, it is unrolled if it is known how
# often it runs. Where sizes of what it carries change, they count as unknown.


@entry("If")
def _if(node: Node, condition: Any) -> Any:
    then, otherwise = node.get("then_branch"), node.get("else_branch")
    if not isinstance(condition, Tensor):
        return tuple((then if bool(condition) else otherwise)())
    taken = [_Read(branch) for branch in (then, otherwise)]
    if taken[0].types() != taken[1].types():
        # Branches of different types: which it is has to be known.
        return tuple((then if bool(node.value(0)) else otherwise)())
    return tuple(cond(cnp.reshape(condition, ()), *taken))


class _Read:
    """A body that is read once, into a graph of its own, and called any number of times.

    What a body returns decides how it is run. If it were read for that and then again where it runs, a body at depth n
    would be read 2^n times.

    Args:
        inputs: arrays and sequences of them, of the types that the body will be called with.
    """

    def __init__(self, body: Callable[..., list[Any]], *inputs: Any) -> None:
        leaves, treedef = tree.flatten(inputs)
        self._traced = Traced(
            "body", lambda given: body(*tree.unflatten(treedef, given)), leaves_of(leaves, [None] * len(leaves))
        )
        self.results: list[Any] = self._traced.result
        self._closed = close([self._traced.finish()])

    def types(self) -> Any:
        """Structure and types of its results."""
        return self._traced.treedef, [(np.dtype(x.dtype), known_shape(x)) for x in self._traced.leaves]

    def __call__(self, *inputs: Any) -> list[Any]:
        builder = recorder()
        given = [value_in(builder, x) for x in tree.leaves(inputs)]
        values = builder.inline(self._closed.regions[0], [*self._closed.captures, *given])
        # Results that were known when the model was read stay known.
        leaves = [
            Tensor(builder, v) if isinstance(x, Tensor) else x for x, v in zip(self._traced.leaves, values, strict=True)
        ]
        found: list[Any] = tree.unflatten(self._traced.treedef, leaves)
        return found


def _traced(x: Any) -> Any:
    """A value with every array in it as one of the graph."""
    return tree.map(recorded, x)


@entry("Loop")
def _loop(node: Node, most: Any, goes_on: Any, *carried: Any) -> Any:
    body: Body = node.get("body")
    held = len(carried)
    if not all(map(is_array, carried)) and _is_known(node):
        return _unrolled(node, body, carried)
    # When the body runs, the loop's condition is true.
    going_on: Callable[..., list[Any]] = lambda i, *values: body(i, np.bool_(True), *values)
    read = _Read(going_on, recorded(np.int64(0)), *map(_traced, carried))
    condition, after, rows = read.results[0], read.results[1 : 1 + held], read.results[1 + held :]
    if any(_structure(a) != _structure(b) for a, b in zip(carried, after, strict=True)):
        return _unrolled(node, body, carried)
    endless = goes_on is None or (is_array(goes_on) and not isinstance(goes_on, Tensor) and bool(goes_on))
    always = endless and not isinstance(condition, Tensor) and bool(condition)
    grows = [_changed(a, b) for a, b in zip(carried, after, strict=True)]
    if most is not None and not isinstance(most, Tensor) and always and not any(grows):
        return _counted(read, int(np.reshape(most, ())), carried)
    # If sizes count as unknown, the body is read once more.
    iteration = going_on if any(grows) else read
    carried = tuple(unknown_dims(recorded(x), axes) if axes else x for x, axes in zip(carried, grows, strict=True))
    arrays = [TensorArray(y.dtype, None, known_shape(y)) for y in rows]
    count = None if most is None else cnp.reshape(most, ())
    alive = np.bool_(True) if goes_on is None else cnp.reshape(goes_on, ())

    def test(state: Any) -> Any:
        i, alive, *_ = state
        return alive if count is None else (i < count) & alive

    def step(state: Any) -> Any:
        i, _, values, arrays = state
        results = iteration(i, *values)
        values = [_forgotten(x, axes) for x, axes in zip(results[1 : 1 + held], grows, strict=True)]
        arrays = [a.write(i, y) for a, y in zip(arrays, results[1 + held :], strict=True)]
        return i + np.int64(1), cnp.reshape(results[0], ()), values, arrays

    state = while_loop(test, step, (recorded(np.int64(0)), recorded(alive), [_traced(x) for x in carried], arrays))
    return *state[2], *(a.stack() for a in state[3])


def _is_known(node: Node) -> bool:
    """True if the most iterations of a loop, and whether it begins, are known."""
    return all(x is None or node.known(i) is not None for i, x in enumerate(node.inputs[:2]))


def _structure(x: Any) -> Any:
    leaves, treedef = tree.flatten(x)
    # Arrays in a sequence have their own sizes; an array alone may change them.
    return treedef, [y.ndim if is_array(x) else known_shape(y) for y in leaves]


def _changed(x: Any, y: Any) -> tuple[int, ...]:
    """The axes whose size one iteration changes."""
    if not is_array(x):
        return ()
    return tuple(axis for axis, (a, b) in enumerate(zip(known_shape(x), known_shape(y), strict=True)) if a != b)


def _forgotten(x: Any, axes: tuple[int, ...]) -> Any:
    return unknown_dims(recorded(x), axes) if axes else x


def _counted(read: _Read, count: int, carried: Sequence[Any]) -> tuple[Any, ...]:
    """A loop of known trip count."""
    held = len(carried)

    def step(values: Any, i: Any) -> Any:
        results = read(i, *values)
        return results[1 : 1 + held], results[1 + held :]

    last, rows = scan(step, [_traced(x) for x in carried], np.arange(count, dtype=np.int64))
    return *last, *rows


def _unrolled(node: Node, body: Body, carried: Sequence[Any]) -> tuple[Any, ...]:
    count = None if node.inputs[0] is None else int(node.value(0).reshape(()))
    alive = node.inputs[1] is None or bool(node.value(1))
    held, values, rows, i = len(carried), list(carried), [], 0
    while alive and (count is None or i < count):
        results = body(np.int64(i), np.bool_(True), *values)
        if isinstance(results[0], Tensor):
            # Said of the loop: its condition has to be known.
            node.of(results[0]).value(0)
        alive, values = bool(results[0]), results[1 : 1 + held]
        rows.append(results[1 + held :])
        i += 1
    return *values, *(cnp.stack(column) for column in zip(*rows, strict=True))


@entry("Scan")
def _scan(node: Node, *inputs: Any) -> Any:
    if node.version >= 9:
        return _scan_steps(node, *inputs)
    lengths, *values = inputs
    if lengths is None:
        return tuple(vmap(lambda *xs: _scan_steps(node, *xs))(*values))
    return tuple(vmap(lambda n, *xs: _scan_steps(node, *xs, length=n))(lengths, *values))


def _scan_steps(node: Node, *inputs: Any, length: Any = None) -> tuple[Any, ...]:
    """The steps over all rows, or over the first `length` ones: then states stay, and rows of results are zero."""
    body: Body = node.get("body")
    count = node.get("num_scan_inputs")
    held = len(inputs) - count
    states, scanned = inputs[:held], inputs[held:]
    made = body.outputs - held
    backwards = node.get("scan_input_directions") or node.get("directions") or [0] * count
    axes = node.get("scan_input_axes") or [0] * count
    rows = [_in_order(cnp.moveaxis(x, a, 0), d, length) for x, a, d in zip(scanned, axes, backwards, strict=True)]

    def step(values: Any, row: Any) -> Any:
        results = body(*values, *row)
        return results[:held], results[held:]

    def step_of_some(values: Any, row: Any) -> Any:
        after, new = step(values, row[1:])
        others = [*values, *map(cnp.zeros_like, new)]
        results = [cnp.where(row[0] < length, y, x) for x, y in zip(others, [*after, *new], strict=True)]
        return results[:held], results[held:]

    given = [_traced(x) for x in states]
    if length is None:
        last, stacked = scan(step, given, rows)
    else:
        last, stacked = scan(step_of_some, given, [np.arange(rows[0].shape[0]), *rows])
    backwards = node.get("scan_output_directions") or [0] * made
    axes = node.get("scan_output_axes") or [0] * made
    outputs = (cnp.moveaxis(_in_order(y, d, length), 0, a) for y, a, d in zip(stacked, axes, backwards, strict=True))
    return *last, *outputs


def _in_order(x: Any, backwards: int, length: Any) -> Any:
    """Rows, or the first `length` of them, in the other order where they go backwards."""
    if not backwards or length is None:
        return cnp.flip(x, 0) if backwards else x
    t = np.arange(x.shape[0])
    return cnp.take(x, cnp.where(t < length, length - 1 - t, t), axis=0)
