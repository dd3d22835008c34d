"""One program, run natively: its values against NumPy's, its gradients against three judges.

Values are those of the same source on NumPy arrays in float64, exact for integers. Gradients, of a sum with random
weights, are compared element by element with the reference engine's in float64, which NumPy computes; those with a
finite difference of NumPy's values along a random direction, where the program is smooth and not too large; and all
with JAX's where JAX is to judge: to compile for JAX takes longer than all else.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from size_sweep.program import Program

# Sources with kinks so near to each other that a difference of any width has some between its ends.
_ROUGH = re.compile(r"sort|median|percentile|max|min|abs|where")
MOST_FOR_DIFFERENCES = 200_000


class MismatchError(Exception):
    """The program's numbers are not those of its judge."""


def judge(program: Program, begin: Callable[[Program], None] = lambda program: None) -> Counter[str]:
    """Comparisons by judge, at the program's sizes and the further ones. MismatchError where results differ.

    `begin` hears of each program before it runs.
    """
    compared: Counter[str] = Counter()
    compiled: dict[tuple[str, str], Callable[..., Any]] = {}
    for sized in (program, *program.at_further_sizes()):
        begin(sized)
        _judge(sized, compiled, compared)
        compared["further sizes" if sized.further else "programs"] += 1
    return compared


def _judge(program: Program, compiled: dict[tuple[str, str], Callable[..., Any]], compared: Counter[str]) -> None:
    given = program.values()
    wide = [x.astype(np.float64) if x.dtype == np.float32 else x for x in given]
    plain = _evaluated(program, np, _PLAIN)
    with np.errstate(all="ignore"):
        expected = np.asarray(plain(*wide))
    traced = _evaluated(program, cnp, _TRACED)
    found = np.asarray(_function(program, compiled, "value", traced, given, "native")(*given))
    _same("value, by NumPy", found, expected, program, given)
    compared["NumPy"] += 1
    if program.form.exact or program.dtype not in ("float64", "float32"):
        return
    rng = np.random.default_rng([program.number, program.further])
    weights = rng.standard_normal(expected.shape)
    active = [k for k, x in enumerate(given) if x.dtype.kind == "f"]
    gradient = cg.grad(lambda *args: cnp.sum(traced(*args[:-1]) * args[-1]), argnums=tuple(active))
    args = [*given, weights.astype(program.dtype)]
    wide = [x.astype(np.float64) if x.dtype == np.float32 else x for x in args]
    results = _function(program, compiled, "gradient", gradient, args, "native")(*args)
    reference = _function(program, compiled, "gradient", gradient, wide, "reference")
    references = [np.asarray(x) for x in reference(*wide)]
    for k, result, reference in zip(active, results, references, strict=True):
        _same(f"gradient of {'xyz'[k]}, by the reference engine", np.asarray(result), reference, program, args)
    compared["the reference engine"] += 1
    if not _ROUGH.search(program.form.source) and sum(x.size for x in given) <= MOST_FOR_DIFFERENCES:
        compared["finite differences"] += _differences(program, plain, wide, active, references, rng)
    # JAX does not reverse such a loop.
    if program.machine.by_jax and not program.further and "m.while_" not in program.form.source:
        _by_jax(program, wide, active, results)
        compared["JAX"] += 1


def _function(
    program: Program,
    compiled: dict[tuple[str, str], Callable[..., Any]],
    name: str,
    fn: Callable[..., Any],
    given: list[Any],
    engine: str,
) -> Callable[..., Any]:
    """`fn` compiled, once for all sizes where they are unknown."""
    if (name, engine) not in compiled:
        signature = [cg.TensorSpec((None,) * x.ndim, x.dtype) for x in given] if program.unknown else None
        compiled[name, engine] = cg.function(fn, engine=engine, signature=signature)
    return compiled[name, engine]


def _same(what: str, found: np.ndarray, expected: np.ndarray, program: Program, given: list[Any]) -> None:
    if found.shape != expected.shape:
        raise MismatchError(f"{what}: shape {list(found.shape)}, expected {list(expected.shape)}")
    if not found.size:
        return
    if found.dtype.kind in "iub" or expected.dtype.kind in "iub":
        if (found == expected).all():
            return
        wrong = found != expected
        allowed = 0.0
    else:
        with np.errstate(over="ignore"):
            # A judge in float64 knows numbers that overflow in float32.
            expected = expected.astype(found.dtype)
        longest = max([1, *(x.size for x in given)])
        rounding = 1e-8 if program.dtype == "float64" else 3e-4 + 1e-7 * longest
        largest = max(float(expected.max()), -float(expected.min()))
        if not np.isfinite(largest):
            largest = float(np.abs(expected[np.isfinite(expected)]).max(initial=0))
        allowed = rounding * max(1.0, largest)
        with np.errstate(all="ignore"):
            if np.abs(found - expected).max() <= allowed:
                return
        with np.errstate(all="ignore"):
            wrong = ~(
                (np.abs(found - expected) <= allowed) | (found == expected) | (np.isnan(found) & np.isnan(expected))
            )
    if wrong.any():
        first = tuple(int(k) for k in np.argwhere(wrong)[0])
        raise MismatchError(
            f"{what}: {int(wrong.sum())} of {found.size} elements differ; at {list(first)}: {found[first]!r}, "
            f"expected {expected[first]!r}, allowed {allowed:.1e}"
        )


def _differences(
    program: Program, plain: Callable[..., Any], args: list[Any], active: list[int], gradients: list[Any], rng: Any
) -> bool:
    """Compare gradients along a direction with central differences of NumPy's values.

    Return false where differences overflow, or depend on their step: the direction crosses a jump, as that of arctan2.
    """
    weights = args[-1]
    along = {k: rng.standard_normal(args[k].shape) for k in active}

    def differences(step: float) -> tuple[float, np.ndarray]:
        with np.errstate(all="ignore"):
            after, before = (
                np.asarray(plain(*[x + move * along[k] if k in along else x for k, x in enumerate(args[:-1])]))
                for move in (step, -step)
            )
            return float(np.sum((after - before) / (2 * step) * weights)), after

    slope, value = differences(1e-6)
    if not np.isfinite(slope):
        return False
    pieces = [np.sum(g * along[k]) for k, g in zip(active, gradients, strict=True)]
    size = 1 + sum(float(np.sqrt(np.sum((g * along[k]) ** 2))) for k, g in zip(active, gradients, strict=True))
    size += float(np.sqrt(np.sum((value * weights) ** 2))) * 1e-5
    if not abs(slope - float(sum(pieces))) <= 1e-4 * size:
        if not abs(slope - differences(1e-7)[0]) <= 1e-4 * size:
            return False
        raise MismatchError(f"gradient along a direction: {float(sum(pieces))!r}, differences give {slope!r}")
    return True


def _by_jax(program: Program, args: list[Any], active: list[int], results: Any) -> None:
    import jax

    from ctrlgrad.verify.jax_judge import confirmed

    jax.config.update("jax_enable_x64", True)
    fn = _evaluated(program, jax.numpy, _of_jax())

    def loss(*given: Any) -> Any:
        return jax.numpy.sum(fn(*given[:-1]) * given[-1])

    def mismatch(expected: Any) -> MismatchError | None:
        try:
            for k, result, other in zip(active, results, expected, strict=True):
                _same(f"gradient of {'xyz'[k]}, by JAX", np.asarray(result), np.asarray(other), program, args)
        except MismatchError as error:
            return error
        return None

    gradient = jax.jit(jax.grad(loss, argnums=tuple(active)))
    expected, _ = confirmed(lambda: gradient(*args), lambda expected: mismatch(expected) is None)
    if error := mismatch(expected):
        raise error


# The source's `np` and `m`.


def _evaluated(program: Program, np_: Any, m: Any) -> Callable[..., Any]:
    names = ", ".join("xyz"[: len(program.form.arguments)])
    fn: Callable[..., Any] = eval(f"lambda {names}: {program.form.source}", {"np": np_, "m": m})
    return fn


def _fori(count: int, fn: Callable[..., Any], carry: Any) -> Any:
    for k in range(count):
        carry = fn(k, carry)
    return carry


def _scan(fn: Callable[..., Any], carry: Any, rows: Any) -> Any:
    results = []
    for row in rows:
        carry, result = fn(carry, row)
        results.append(result)
    return carry, np.stack(results)


def _while(condition: Callable[..., Any], fn: Callable[..., Any], carry: Any) -> Any:
    while condition(carry):
        carry = fn(carry)
    return carry


def _set(x: Any, index: Any, new: Any) -> Any:
    x = np.array(x)
    x[index] = new
    return x


def _add(x: Any, index: Any, new: Any) -> Any:
    x = np.array(x)
    np.add.at(x, index, new)
    return x


_PLAIN = SimpleNamespace(fori=_fori, scan=_scan, while_=_while, set=_set, add=_add)


def _of(module: Any, loops: Any, as_array: Callable[[Any], Any]) -> SimpleNamespace:
    return SimpleNamespace(
        fori=lambda count, fn, carry: loops.fori_loop(0, count, fn, carry),
        scan=loops.scan,
        while_=loops.while_loop,
        set=lambda x, index, new: as_array(x).at[index].set(new),
        add=lambda x, index, new: as_array(x).at[index].add(new),
    )


_TRACED = _of(cg, cg, lambda x: x)


def _of_jax() -> SimpleNamespace:
    import jax

    return _of(jax, jax.lax, jax.numpy.asarray)
