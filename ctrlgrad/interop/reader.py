"""Reading a jaxpr: its equations, one by one, as calls of this library's functions.

`read` is called inside of a trace. Values are traced tensors, or arrays where all that they depend on is known; keys
of `jax.random` are their words, uint32 with one more axis. Each result is brought to the dtype that the jaxpr states,
since NumPy's promotions are not JAX's. What is recorded stands at the line of the user's that made the equation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax._src.state.discharge import discharge_state
from jax.extend.core import ClosedJaxpr, Literal

from ctrlgrad.errors import TypeMismatchError, locate
from ctrlgrad.frontend.apply import cast, tensor_type, type_of
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.interop import (  # noqa: F401  (they fill the table)
    arrays,
    bit_generator,
    callbacks,
    collectives,
    control,
    custom_rules,
    elementwise,
    equinox,
    householder,
    indexing,
    linalg,
    random,
    reductions,
    windows,
)
from ctrlgrad.interop.avals import constant, dtype_of, key_words
from ctrlgrad.interop.custom_rules import by_its_rules
from ctrlgrad.interop.jax_errors import is_of_jax
from ctrlgrad.interop.primitives import REFUSED, TABLE, Equation, Parameters, unsupported
from ctrlgrad.interop.primitives import jax_primitive as jax_primitive
from ctrlgrad.interop.settings import x64_as
from ctrlgrad.source import Source, here, is_own, read_from

_REFS = frozenset(["new_ref", "empty_ref"])


@dataclass(frozen=True)
class Reader:
    """Reads jaxprs that were traced with 64-bit types or without them.

    An elementwise reader takes arrays for the numbers that a jaxpr is written for.
    """

    x64: bool
    is_elementwise: bool = False

    def read(self, jaxpr: Any, *operands: Any) -> list[Any]:
        """The results of a jaxpr, closed or open, for these operands."""
        closed = jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, ())
        jaxpr = closed.jaxpr
        values: dict[Any, Any] = {}

        def value(atom: Any) -> Any:
            return constant(atom.val, atom.aval) if isinstance(atom, Literal) else values[atom]

        for var, const in zip(jaxpr.constvars, closed.consts, strict=True):
            values[var] = const if isinstance(const, Tensor) else constant(const, var.aval)
        values.update(zip(jaxpr.invars, operands, strict=True))
        for eqn in jaxpr.eqns:
            results = self.equation(eqn, [value(x) for x in eqn.invars])
            values.update(zip(eqn.outvars, results, strict=True))
        return [value(x) for x in jaxpr.outvars]

    def equation(self, eqn: Any, operands: Sequence[Any]) -> list[Any]:
        """The results of one equation."""
        source = source_of(eqn) or here()
        inputs, outputs = (tuple(x.aval for x in atoms) for atoms in (eqn.invars, eqn.outvars))
        over_arrays = Reader(self.x64, is_elementwise=True).read
        name = eqn.primitive.name
        params = Parameters(name, eqn.params, source)
        equation = Equation(name, params, inputs, outputs, source, self.read, over_arrays, self.trace, eqn)
        entry = TABLE.get(equation.name) or (by_its_rules if equation.name not in REFUSED else None)
        if entry is None:
            raise unsupported(equation)
        with read_from(source):
            try:
                results = entry(equation, *operands)
            except Exception as error:
                locate(error, f"JAX's {equation.name}", source)
                raise
            if not isinstance(results, tuple | list):
                results = [results]
            return [self.fitted(x, aval, equation) for x, aval in zip(results, outputs, strict=True)]

    def fitted(self, x: Any, aval: Any, equation: Equation) -> Any:
        """A result with the dtype that the jaxpr states; its rank must be the stated one."""
        if not hasattr(aval, "dtype"):  # a token
            return x
        result = cast(x, dtype_of(aval))
        if tensor_type(result).rank != aval.ndim + len(key_words(aval)) and not self.is_elementwise:
            raise TypeMismatchError(
                f"from_jax: the translation of {equation.name!r} has another rank than JAX's",
                source=equation.source,
                expected=str(aval),
                got=str(type_of(result)),
                hint="mend the function that was given to ctrlgrad.interop.jax_primitive",
            )
        return result

    def trace(self, fn: Callable[..., Any], *avals: Any) -> Any:
        """A JAX function as a closed jaxpr."""
        with x64_as(self.x64):
            return jax.make_jaxpr(fn)(*avals)


def without_refs(closed: ClosedJaxpr) -> ClosedJaxpr:
    """A jaxpr whose references to arrays (`jax.new_ref`) are values that are passed on: JAX rewrites it."""
    return discharge_state(closed) if any(eqn.primitive.name in _REFS for eqn in closed.jaxpr.eqns) else closed


def source_of(eqn: Any) -> Source | None:
    """The line of the user's that made an equation."""
    traceback = eqn.source_info.traceback
    for frame in traceback.frames if traceback is not None else ():
        file = frame.file_name
        if not is_of_jax(file) and not is_own(file) and not file.startswith("<"):
            return Source(file, frame.line_num, frame.function_name)
    return None
