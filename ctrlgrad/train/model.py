"""The character model: its parameters, its loss as loops over the characters, and its sampler as another loop.

The loss of a batch runs one iteration per character of its longest line, as far as the lengths say at run time;
lines that have ended are masked. The sampler runs until the line ends.

The loss is one loop through all layers, or a loop for each layer and one for the read-out. In one loop the layers'
devices work at the same time, and all that the backward pass needs can be swapped; but every parameter's gradient is
complete only after the whole backward pass. With a loop each, the backward pass goes through the layers one by one, and
a layer's gradient is complete while those below are still to come: `on_gradient` hears of it then. The outputs of the
layers are kept beside the loops, which takes a tenth to a quarter more memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import tree
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.nn import dropout, softmax_cross_entropy
from ctrlgrad.nn.layers import fan_in
from ctrlgrad.train.corpus import END
from ctrlgrad.train.layers import LAYERS
from ctrlgrad.train.settings import Settings

SAMPLE_LIMIT = 200
BITS_PER_NAT = 1 / np.log(2)

# Gets a parameter's number among the leaves of all parameters, and its gradient.


def dtype_of(precision: str) -> np.dtype:
    """The dtype of a precision's name.

    >>> dtype_of("float32")
    dtype('float32')
    """
    return np.dtype(cnp.bfloat16 if precision == "bfloat16" else precision)


OnGradient = Callable[[int, np.ndarray], None]
# The input of a layer at iteration t.
Read = Callable[[Any], Any]


class Model:
    """The functions of one model; parameters are passed to each of them.

    Parameters: `embedding` `[symbols, embedding]`, `layers` (a list of a layer's parameters), and the read-out
    `out` `{"w": [hidden, symbols], "b": [symbols]}`, all of the settings' precision.
    """

    def __init__(
        self,
        settings: Settings,
        symbols: int,
        columns: int | None = None,
        places: Sequence[str] = (),
        on_gradient: OnGradient | None = None,
    ) -> None:
        """`columns` is how many lines stand side by side: as many as in a batch, where it is not given. `places` says
        for each layer which device it sits on; the embedding sits with the first one, the read-out with the last.

        With `on_gradient` there is a loop for each layer, and `bits_and_grads` calls it with each parameter's gradient
        as soon as that is complete, in an order that the graph fixes.
        """
        self.settings = settings
        self.places = places
        self.on_gradient = on_gradient
        self.symbols = symbols
        self.columns = settings.batch if columns is None else columns
        self.cell = LAYERS[settings.cell]
        self.dtype = dtype_of(settings.precision)
        self.sums = np.float64 if settings.precision == "float64" else np.float32
        spec = cg.TensorSpec
        params = self.init(cg.random.key(0))
        # The number of characters is unknown, so that batches of any length run the same graph.
        data = (spec((None, self.columns), np.int64), spec((self.columns,), np.int64))
        rest = (spec((), np.int64), spec((2,), np.uint32)) if settings.dropout else (spec((), np.int64),)
        like = tree.map(lambda p: spec(p.shape, p.dtype), params)
        engine = settings.engine
        loss = cg.value_and_grad(self.bits_per_char)
        self.bits_and_grads = cg.function(loss, signature=(like, *data, *rest), engine=engine)
        self.line_bits_of = cg.function(self.line_bits, signature=(like, *data), engine=engine)
        # One line is done before its loop would be compiled.
        written = (like, spec((SAMPLE_LIMIT,), np.float32), spec((None,), np.int64), spec((), np.float32))
        self.sample_of = cg.function(self.sample, signature=written, engine="reference")

    def init(self, key: Any) -> Any:
        """Parameters of a key."""
        hidden, embedding, dtype = self.settings.hidden, self.settings.embedding, self.dtype
        sizes = [embedding] + [hidden] * (self.settings.layers - 1)
        first, last, *keys = cg.random.split(key, self.settings.layers + 2)
        return {
            "embedding": cg.random.normal(first, (self.symbols, embedding), np.float32).astype(dtype),
            "layers": [self.cell.init(k, n, hidden, dtype) for k, n in zip(keys, sizes, strict=True)],
            "out": {"w": fan_in(last, (hidden, self.symbols), dtype), "b": np.zeros(self.symbols, dtype)},
        }

    def start(self, lines: int, steps: Any) -> list[Any]:
        """The state of every layer before the first character of lines that take so many steps at most."""
        states = []
        for number in range(self.settings.layers):
            with self._place(number):
                states.append(self.cell.start(lines, self.settings.hidden, steps, self.dtype))
        return states

    def step(self, params: Any, states: list[Any], symbols: Any, key: Any = None) -> tuple[list[Any], Any]:
        """Read one symbol of each line, int64 `[batch]`; returns the next states and the logits `[batch, symbols]`.

        The key is of this step's dropout, None for none.
        """
        with self._place(0):
            x = self._dropped(params["embedding"][symbols], key, 0)
        after = []
        for number, (layer, state) in enumerate(zip(params["layers"], states, strict=True)):
            with self._place(number):
                state = self.cell.step(layer, state, x)
                x = self._dropped(state[0], key, number + 1)
            after.append(state)
        with self._place(-1):
            return after, x @ params["out"]["w"] + params["out"]["b"]

    def _dropped(self, x: Any, key: Any, layer: int) -> Any:
        return x if key is None else dropout(cg.random.fold_in(key, layer), x, self.settings.dropout)

    def _step_key(self, key: Any, t: Any) -> Any:
        return None if key is None else cg.random.fold_in(key, t)

    def _truncated(self, state: Any, t: Any) -> Any:
        """The state; at each `truncate`-th step one through which no gradient goes back."""
        if not self.settings.truncate:
            return state
        is_cut = t % self.settings.truncate == 0
        return tree.map(lambda s: cnp.where(is_cut, cg.stop_gradient(s), s) if dtype_kind(s.dtype) == "f" else s, state)

    def _folded(self, params: Any) -> Any:
        """The parameters with the first layer's products of all symbols as the embedding, where that is less work.

        A batch has more tokens than there are symbols, unless these are words; dropout goes between the two.
        """
        first, *rest = params["layers"]
        if "wx" not in first or self.settings.dropout or self.symbols > 16 * self.settings.batch:
            return params
        with self._place(0):
            table = params["embedding"] @ first["wx"]
        return {**params, "embedding": table, "layers": [{k: p for k, p in first.items() if k != "wx"}, *rest]}

    def _place(self, layer: int) -> AbstractContextManager[None]:
        return cg.device(self.places[layer]) if self.places else nullcontext()

    def line_bits(self, params: Any, symbols: Any, lengths: Any, key: Any = None) -> Any:
        """The bits that each line costs, `[lines]`; `symbols` and `lengths` are those of a `Batch`."""
        longest, params = cnp.max(lengths), self._folded(params)

        def read_one(carry: Any) -> Any:
            t = carry["t"]
            before = self._truncated(carry["states"], t)
            states, logits = self.step(params, before, symbols[t], self._step_key(key, t))
            with self._place(-1):
                nats = carry["nats"] + _nats(logits, t, symbols, lengths)
            return {"t": t + 1, "states": states, "nats": nats}

        lines = self.columns
        first = {"t": 0, "states": self.start(lines, symbols.shape[0] - 1), "nats": np.zeros(lines, self.sums)}
        last = cg.while_loop(lambda carry: carry["t"] < longest, read_one, first, name="read lines")
        return last["nats"] * self.sums(BITS_PER_NAT)

    def line_bits_by_layer(
        self, params: Any, symbols: Any, lengths: Any, on_gradient: OnGradient, key: Any = None
    ) -> Any:
        """The same by a loop for each layer.

        A layer's parameters are watched where they are used, between the loops: there the backward pass, which goes the
        other way, has just completed their gradients.
        """
        longest = cnp.max(lengths)
        lines, hidden = self.columns, self.settings.hidden
        leaves, treedef = tree.flatten(params)
        numbers = tree.unflatten(treedef, list(range(len(leaves))))
        watch = partial(_watched, on_gradient)

        def run_layer(number: int, layer: Any, read: Read) -> Read:
            def step(carry: Any) -> Any:
                t = carry["t"]
                state = self.cell.step(layer, self._truncated(carry["state"], t), read(t))
                return {"t": t + 1, "state": state, "outputs": carry["outputs"].write(t, state[0])}

            steps = symbols.shape[0] - 1
            outputs = cg.TensorArray(self.dtype, size=steps, element_shape=(lines, hidden))
            first = {"t": 0, "state": self.cell.start(lines, hidden, steps, self.dtype), "outputs": outputs}
            last = cg.while_loop(lambda carry: carry["t"] < longest, step, first, name=f"layer {number}")
            found = last["outputs"]
            return lambda t: self._dropped(found.read(t), self._step_key(key, t), number + 1)

        def watched(number: int) -> Any:
            return tree.map(watch, params["layers"][number], numbers["layers"][number])

        embedding = tree.map(watch, params["embedding"], numbers["embedding"])
        below = self._folded({"embedding": embedding, "layers": [watched(0)]})

        def embedded(t: Any) -> Any:
            return self._dropped(below["embedding"][symbols[t]], self._step_key(key, t), 0)

        read = run_layer(0, below["layers"][0], embedded)
        for number in range(1, len(params["layers"])):
            read = run_layer(number, watched(number), read)
        out = tree.map(watch, params["out"], numbers["out"])

        def score_one(carry: Any) -> Any:
            t = carry["t"]
            logits = read(t) @ out["w"] + out["b"]
            return {"t": t + 1, "nats": carry["nats"] + _nats(logits, t, symbols, lengths)}

        first = {"t": 0, "nats": np.zeros(lines, self.sums)}
        last = cg.while_loop(lambda carry: carry["t"] < longest, score_one, first, name="read-out")
        return last["nats"] * self.sums(BITS_PER_NAT)

    def bits_per_char(self, params: Any, symbols: Any, lengths: Any, characters: Any, key: Any = None) -> Any:
        """The loss: the bits of all lines, over how many characters the batch has, each line's end counted as one.

        The lines may be a part of those of the batch: the losses of all parts add up to that of the batch.
        """
        by_layer, data = self.on_gradient, (params, symbols, lengths)
        bits = self.line_bits(*data, key) if by_layer is None else self.line_bits_by_layer(*data, by_layer, key)
        return cnp.sum(bits) / characters.astype(bits.dtype)

    def sample(self, params: Any, uniform: Any, prompt: Any, temperature: Any) -> Any:
        """A line, int64 `[SAMPLE_LIMIT]`: symbols up to the first `END`, then zeros.

        It begins with the prompt, int64 `[any]`. `uniform` is float32 `[SAMPLE_LIMIT]` in [0, 1); number t picks
        symbol t by the inverse of the distribution function that the model gives, of logits over the temperature, a
        float32 scalar. The loop ends with the line, or where the numbers end.
        """
        given = prompt.shape[0]

        def is_unfinished(carry: Any) -> Any:
            return cnp.logical_and(
                carry["t"] < SAMPLE_LIMIT, cnp.logical_or(carry["t"] == 0, carry["symbol"][0] != END)
            )

        def write_one(carry: Any) -> Any:
            t = carry["t"]
            states, logits = self.step(params, carry["states"], carry["symbol"])
            logits = logits.astype(np.float32) / temperature
            below = cnp.cumsum(cnp.exp(logits - cnp.max(logits)), axis=1)
            symbol = cnp.sum((below <= uniform[t] * below[0, -1]).astype(np.int64), axis=1)
            symbol = cnp.where(t < given, padded[cnp.minimum(t, given)], symbol)
            return {"t": t + 1, "states": states, "symbol": symbol, "line": carry["line"].write(t, symbol[0])}

        padded = cnp.concatenate([prompt, np.zeros(1, np.int64)])
        line = cg.TensorArray("int64", size=SAMPLE_LIMIT, element_shape=())
        first = {"t": 0, "states": self.start(1, SAMPLE_LIMIT), "symbol": np.full(1, END, np.int64), "line": line}
        return cg.while_loop(is_unfinished, write_one, first, name="write a line")["line"].stack()


def _nats(logits: Any, t: Any, symbols: Any, lengths: Any) -> Any:
    """Cost of the characters after iteration t, float32 `[lines]`; nothing, where a line has ended."""
    # Sums are float32 at least.
    logits = logits.astype(np.float32) if logits.dtype.itemsize < 4 else logits
    return cnp.where(t < lengths, softmax_cross_entropy(logits, symbols[t + 1]), np.float32(0))


def _watched(on_gradient: OnGradient, parameter: Any, number: int) -> Any:
    """The parameter; its gradient is told."""
    return cg.debug.watch_cotangent(parameter, lambda ct, at: on_gradient(number, ct), label=f"gradient {number}")
