"""Programs of JAX from a seed: functions of a vector, a scalar and an integer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

SIZE = 4


class State(NamedTuple):
    """Values that statements of a program exchange: f64[SIZE], f64[] and an integer from 0 to 4."""

    v: Any
    s: Any
    i: Any


Step = Callable[[State], State]


@jax.custom_jvp
def soft(x: Any) -> Any:
    return jnp.log1p(jnp.exp(-jnp.abs(x))) + jnp.maximum(x, 0)


@soft.defjvp
def _soft_jvp(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return soft(x), t / (1 + jnp.exp(-x))


@jax.custom_vjp
def wave(x: Any, n: Any) -> Any:
    return jnp.sin(x) * (n + 1)


wave.defvjp(lambda x, n: (wave(x, n), (jnp.cos(x), n)), lambda kept, ct: (kept[0] * ct * (kept[1] + 1), None))

VECTORS: dict[str, Callable[[State], Any]] = {
    "sin": lambda c: jnp.sin(c.v),
    "tanh": lambda c: jnp.tanh(c.v + c.s),
    "bump": lambda c: jnp.exp(-c.v * c.v),
    "log1p": lambda c: jnp.log1p(c.v * c.v),
    "root": lambda c: jnp.sqrt(1 + c.v**2) - 1,
    "sigmoid": lambda c: jax.nn.sigmoid(c.v),
    "relu": lambda c: jax.nn.relu(c.v) + 0.1 * c.v,
    "ratio": lambda c: c.v / (1 + c.s * c.s),
    "atan2": lambda c: jnp.arctan2(c.v, 1 + c.s**2),
    "where": lambda c: jnp.where(c.v > c.s, jnp.cos(c.v), 0.5 * c.v),
    "max": lambda c: jnp.maximum(c.v, 0.3 * jnp.roll(c.v, 1)),
    "clip": lambda c: jnp.clip(c.v, -2.0, 2.0) + 0.01 * c.v,
    "cumsum": lambda c: jnp.tanh(jnp.cumsum(c.v)),
    "cumprod": lambda c: jnp.cumprod(jnp.cos(c.v)),
    "cummax": lambda c: jnp.sin(lax.cummax(c.v)),
    "flip": lambda c: c.v[::-1] * 0.9,
    "concatenate": lambda c: jnp.concatenate([c.v[2:], jnp.sin(c.v[:2])]),
    "pad": lambda c: jnp.pad(c.v[1:-1], 1, constant_values=0.5) * c.s,
    "update": lambda c: c.v.at[c.i % SIZE].set(jnp.sin(c.s)),
    "slice": lambda c: lax.dynamic_update_slice(c.v, jnp.cos(lax.dynamic_slice(c.v, (c.i % 3,), (2,))), (c.i % 2,)),
    "sort": lambda c: jnp.sort(c.v) * 0.9,
    "matrix": lambda c: jnp.sin(jnp.outer(c.v, c.v) @ jnp.arange(SIZE)),
    "reshape": lambda c: (c.v.reshape(2, 2).T @ jnp.array([[0.1, 0.7], [-0.4, 0.3]])).reshape(SIZE),
    "integer": lambda c: jnp.sin(c.v * (c.i + 1)),
    "soft": lambda c: soft(c.v) - 0.5,
    "softmax": lambda c: jax.nn.softmax(c.v),
    "stop": lambda c: c.v * lax.stop_gradient(jnp.cos(c.v)),
    "cast": lambda c: c.v * (c.v > 0).astype(c.v.dtype) + 0.1,
}
SCALARS: dict[str, Callable[[State], Any]] = {
    "sum": lambda c: jnp.sin(jnp.sum(c.v)),
    "mean": lambda c: jnp.mean(c.v) + 0.1 * c.s,
    "max": lambda c: jnp.cos(jnp.max(c.v)),
    "prod": lambda c: jnp.prod(jnp.tanh(c.v)),
    "dot": lambda c: jnp.tanh(jnp.dot(c.v, c.v[::-1])),
    "logsumexp": lambda c: jax.nn.logsumexp(c.v) - 1,
    "norm": lambda c: jnp.sqrt(1 + jnp.sum(c.v**2)) - 1,
    "pick": lambda c: c.v[c.i % SIZE],
    "ratio": lambda c: c.s / (1 + c.v[0] ** 2),
    "var": lambda c: jnp.tanh(jnp.var(c.v)),
    "soft": lambda c: soft(c.s) - 0.5,
    "power": lambda c: (1 + c.s**2) ** 0.3,
}
INTEGERS: dict[str, Callable[[State], Any]] = {
    "next": lambda c: (c.i + 1) % 5,
    "twice": lambda c: c.i * 2 % 5,
    "argmax": lambda c: jnp.argmax(c.v).astype(c.i.dtype),
    "count": lambda c: jnp.sum(c.v > 0.1).astype(c.i.dtype),
    "floor": lambda c: jnp.clip(jnp.floor(jnp.abs(c.s) * 3), 0, 4).astype(c.i.dtype),
}
# Forward mode ends at functions with a reverse rule.
REVERSE_ONLY: dict[str, Callable[[State], Any]] = {"wave": lambda c: wave(c.v, c.i) * 0.5}


@dataclass(eq=False)
class Program:
    """A program and its text, one line a statement."""

    seed: int
    rng: np.random.Generator = field(init=False)
    lines: list[str] = field(default_factory=list)
    reverse_only: bool = False

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        # One in four programs has functions with a reverse rule.
        self.may_reverse_only = self.rng.random() < 0.25
        self.run = self._block(0, int(self.rng.integers(2, 5)))
        self.v = self.rng.normal(size=SIZE)
        self.s = float(self.rng.normal())
        self.i = int(self.rng.integers(5))

    def __str__(self) -> str:
        return f"program {self.seed} of v={self.v}, s={self.s}, i={self.i}\n" + "\n".join(self.lines)

    def __call__(self, v: Any, s: Any, i: Any) -> Any:
        """The program's number."""
        last = self.run(State(jnp.asarray(v), jnp.asarray(s), jnp.asarray(i, jnp.int32)))
        return jnp.sum(last.v * jnp.array([0.3, -0.7, 1.1, 0.5])) + last.s

    def _block(self, depth: int, length: int) -> Step:
        steps = [self._step(depth) for _ in range(length)]

        def run(c: State) -> State:
            for step in steps:
                c = step(c)
            return c

        return run

    def _step(self, depth: int) -> Step:
        if depth < 3 and self.rng.random() < 0.55:
            names = ["while", "countdown", "fori", "scan", "reverse scan", "map", "cond", "switch", "jit", "checkpoint"]
            name = names[int(self.rng.integers(len(names)))]
            self._write(depth, name)
            inner = [self._block(depth + 1, int(self.rng.integers(1, 3))) for _ in range(3 if name == "switch" else 2)]
            return _CONSTRUCTS[name](*inner)
        where = ("v", "v", "v", "s", "s", "i")[int(self.rng.integers(6))]
        table = {"v": VECTORS, "s": SCALARS, "i": INTEGERS}[where]
        if where == "v" and self.may_reverse_only and self.rng.random() < 0.3:
            table, self.reverse_only = REVERSE_ONLY, True
        # A difference sees what `stop_gradient` hides.
        names = [name for name in table if name != "stop" or not self.may_reverse_only]
        name = names[int(self.rng.integers(len(names)))]
        self._write(depth, f"{where} = {name}")
        return lambda c: c._replace(**{where: table[name](c)})

    def _write(self, depth: int, text: str) -> None:
        self.lines.append("  " * depth + text)


def _while(body: Step, _: Step) -> Step:
    """Until the scalar is small, which it mostly becomes, or a few times."""

    def step(state: tuple[Any, State]) -> tuple[Any, State]:
        after = body(state[1])
        return state[0] + 1, after._replace(s=jnp.tanh(after.s) * 0.5)

    return lambda c: lax.while_loop(lambda state: (jnp.abs(state[1].s) > 0.15) & (state[0] < 5), step, (0, c))[1]


def _countdown(body: Step, _: Step) -> Step:
    def step(state: tuple[Any, State]) -> tuple[Any, State]:
        return state[0] - 1, body(state[1])

    return lambda c: lax.while_loop(lambda state: (state[0] > 0) & (state[1].s < 5), step, (c.i % 4, c))[1]


def _scan(body: Step, collect: Step, reverse: bool) -> Step:
    def run(c: State) -> State:
        def step(c: State, x: Any) -> tuple[State, Any]:
            after = body(c._replace(s=c.s + 0.3 * x))
            return after, collect(after).s * x

        after, ys = lax.scan(step, c, c.v[:3], reverse=reverse)
        return after._replace(s=jnp.tanh(after.s + jnp.sum(ys)))

    return run


def _map(body: Step, _: Step) -> Step:
    """Rows at once, by JAX's own batching."""

    def run(c: State) -> State:
        found = jax.vmap(lambda s: body(c._replace(s=s)).s)(c.v)
        return c._replace(v=jnp.tanh(found))

    return run


_CONSTRUCTS: dict[str, Callable[..., Step]] = {
    "while": _while,
    "countdown": _countdown,
    "fori": lambda body, _: lambda c: lax.fori_loop(0, c.i % 4, lambda k, c: body(c._replace(s=c.s + 0.1 * k)), c),
    "scan": lambda body, collect: _scan(body, collect, False),
    "reverse scan": lambda body, collect: _scan(body, collect, True),
    "map": _map,
    "cond": lambda one, other: lambda c: lax.cond(c.s > 0.1, one, other, c),
    "switch": lambda *branches: lambda c: lax.switch(c.i % 3, branches, c),
    "jit": lambda body, _: jax.jit(body),
    "checkpoint": lambda body, _: jax.checkpoint(body),
}
