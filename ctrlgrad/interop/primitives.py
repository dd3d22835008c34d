"""The table of JAX's primitives: what each equation of a jaxpr is in this library.

An entry is a function of the equation and its operands. The families of entries are in `array_rules.py` and
`custom_rules.py`; users add theirs with `jax_primitive`. A primitive without an entry is an error that names the
primitive, the line, and `jax_primitive`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from ctrlgrad.errors import UnsupportedPrimitiveError
from ctrlgrad.interop.avals import told
from ctrlgrad.source import Source

Entry = Callable[..., Any]

TABLE: dict[str, Entry] = {}

# Primitives without a meaning here, with the reason.
REFUSED: dict[str, str] = {}


class Parameters(dict[str, Any]):
    """Parameters of a primitive; to read one that the installed JAX does not give is an error that says so."""

    def __init__(self, primitive: str, params: Mapping[str, Any], source: Source | None) -> None:
        super().__init__(params)
        self.primitive, self.source = primitive, source

    def __missing__(self, name: str) -> Any:
        raise UnsupportedPrimitiveError(
            f"from_jax: the JAX primitive {self.primitive!r} has no parameter {name!r} in JAX {jax.__version__}",
            source=self.source,
            expected=f"a version of JAX whose {self.primitive} has it",
            got="the parameters " + shown(sorted(self)),
            hint="upgrade ctrlgrad, or install an earlier JAX; please report it",
        )


@dataclass(frozen=True, eq=False)
class Equation:
    """One equation of a jaxpr.

    `inputs` and `outputs` are JAX's abstract values of its operands and results. `read(jaxpr, *operands)` reads a
    jaxpr that it has among its parameters, and returns its results as a list; `read_elementwise` does so for a jaxpr of
    numbers over whole arrays. `trace(fn, *avals)` gives a JAX function as a jaxpr, by the settings of the program.
    """

    name: str
    params: Mapping[str, Any]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    source: Source | None
    read: Callable[..., list[Any]]
    read_elementwise: Callable[..., list[Any]]
    trace: Callable[..., Any]
    # The equation as JAX has it.
    jax: Any

    def implementation(self, fn: Callable[..., Any], *avals: Any) -> Any:
        """A JAX function that computes the results, as a jaxpr; raises `UnsupportedPrimitiveError` if JAX fails."""
        problem = f"from_jax: JAX does not trace the implementation of {self.name!r}"
        hint = f"say what it is, by @ctrlgrad.interop.jax_primitive({self.name!r})"
        with told(UnsupportedPrimitiveError, problem, self.source, hint):
            return self.trace(fn, *avals)


def entry(*names: str) -> Callable[[Entry], Entry]:
    """Give the translation of primitives: `fn(equation, *operands)` returns the result, or a sequence of several."""

    def register(fn: Entry) -> Entry:
        TABLE.update(dict.fromkeys(names, fn))
        return fn

    return register


def plain(fn: Callable[..., Any]) -> Entry:
    """An entry of a function that takes operands alone."""
    return lambda equation, *operands: fn(*operands)


def by_keyword(fn: Callable[..., Any], *names: str) -> Entry:
    """An entry of a function that takes operands, and the parameters of these names by keyword."""
    return lambda equation, *operands: fn(*operands, **{name: equation.params[name] for name in names})


def by_position(fn: Callable[..., Any], *names: str) -> Entry:
    """An entry of a function that takes operands, and then the parameters of these names by position."""
    return lambda equation, *operands: fn(*operands, *map(equation.params.__getitem__, names))


def jax_primitive(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Tell `from_jax` what a JAX primitive is here; it replaces what was known of that name.

    The decorated function takes the primitive's operands as traced tensors and arrays and its parameters by keyword,
    and returns its result, or a tuple of several; dtypes are brought to those that JAX states. It is written with
    `ctrlgrad.numpy`, or, where JAX's own functions can say it, as `ctrlgrad.from_jax(fn)(*operands)`.

    >>> import numpy as np, jax, ctrlgrad as cg, ctrlgrad.numpy as cnp
    >>> from jax.extend.core import Primitive
    >>> scaled_sine = Primitive("scaled_sine")
    >>> _ = scaled_sine.def_abstract_eval(lambda x, *, scale: x)
    >>> @cg.interop.jax_primitive("scaled_sine")
    ... def _(x, *, scale):
    ...     return cnp.sin(scale * x)
    >>> f = cg.from_jax(lambda x: scaled_sine.bind(x, scale=2.0))
    >>> float(cg.grad(f)(np.float32(0.0)))
    2.0
    """

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        TABLE[name] = lambda equation, *operands: fn(*operands, **equation.params)
        return fn

    return register


def unsupported(equation: Equation, reason: str | None = None, hint: str | None = None) -> UnsupportedPrimitiveError:
    """The error of an equation that cannot be translated."""
    reason = reason or REFUSED.get(equation.name)
    return UnsupportedPrimitiveError(
        f"from_jax: the JAX primitive {equation.name!r} "
        + (f"is not supported: {reason}" if reason else "has no translation"),
        source=equation.source,
        expected="primitives of the table in docs/jax_primitives.md",
        got=f"{equation.name} of {shown(equation.inputs)}",
        hint=hint
        or f"say what it is: a function of its operands and, by keyword, its parameters,\n"
        f"decorated with @ctrlgrad.interop.jax_primitive({equation.name!r})",
    )


def shown(avals: Sequence[Any]) -> str:
    return ", ".join(map(str, avals)) or "nothing"
