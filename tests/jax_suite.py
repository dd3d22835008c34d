"""JAX's own tests, run on this library: `python -m tests.jax_suite JAX/tests/lax_control_flow_test.py --engine native`.

The tests come from a checkout of JAX of the version that is installed; nothing of them is kept here. In a copy in
memory their imports of JAX give this library's functions where it has the name and JAX's own where it has not. What
they compare and how is theirs; but where they ask for an error, any error of this library or of Python's built-in kinds
will do, since its words are ours. Tests whose text reaches into JAX (jaxprs, lowering, compilation counts, devices) are
counted apart, and so are those of limits that this library does not have (`NOT_ASKED`).

With `--through from_jax` the tests keep JAX's functions, and what they evaluate is read by `ctrlgrad.from_jax` and run
here (`jax_through.py`); counted are the tests that evaluate something so.
"""

from __future__ import annotations

import argparse
import ast
import collections
import functools
import inspect
import re
import signal
import sys
import time
import types
import unittest
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import jax._src.custom_derivatives
import jax._src.test_util as jtu
import jax.ad_checkpoint
import jax.custom_batching
import numpy as np
from jax._src import public_test_util

import ctrlgrad as cg
from ctrlgrad import custom_derivatives
from ctrlgrad.errors import CtrlgradError
from ctrlgrad.frontend.tensor import Tensor
from tests import jax_through

# Words in a test's text that ask for JAX's inside, not for what its functions compute.
INTERNALS = (
    r"make_jaxpr|\bjaxpr|\bcore\.|\bpe\.|\bmlir\b|\.lower\(|as_text|compiler_ir|\bhlo\b|\bHLO\b|count_(jit|primitive|pjit)|pmap"
    r"|[Ss]harding|\bmesh\b|\bdispatch\.|\bbatching\.|\bad\.|\bad_internal\.|_src\b|\bconfig\.|\bapi_util\.|\bxla_bridge\b"
    r"|weakref|gc\.collect|captured_constants|debug_nans|debug_infs|log_compiles|leak_check|checking_leaks|assert_num_jit"
    r"|effects_barrier|device_put|\.devices\(|donate|\.trace\(|\bliterals\.|cache_clear|_cache_size|clear_caches"
    r"|transfer_guard|numpy_rank_promotion|disable_jit|\bdtypes\.|jax2tf|\bexport\b|inline=|\bdebugging\."
)
# Tests of limits and words of JAX's own, by expressions of their names: they are counted apart, each with its reason.
NOT_ASKED = {
    r"testWhileGradError": "JAX has no reverse mode of such loops and asserts an error",
    r"test_fori_loop_with_dynamic_indices_cannot_unroll": "asserts an error: an unrolled loop has to have known bounds",
    r"testForiLoopErrors": "asserts an error: bounds of two integer dtypes, which are promoted here",
    r"testWhileTypeErrors": "asserts an error: a Python bool in a carry of floats, which is a weak number here",
    r"testScanLengthError": "asserts the words of an error",
    r"APITest.test_(binop_mismatch|grad_(nonscalar|tuple|unit)_output)$": "asserts the words of an error",
    r"test_vmap_preserves_docstr": "asserts the words of a docstring",
    r"testCaching$|test_inner_jit_function_retracing|test_grad_of_jit$": "counts how often JAX traces a function",
    r"test_(jit_compilation_time_logging|grad_of_jit_compilation_caching)$": "reads JAX's log",
    r"test_cond_vmap_forwarding_doesnt_promote": "asserts that a result is the same Python object as an argument",
    r"test_device_array_(hash|repr)|test_jvp_asarray_returns_array|test_is_subclass": "asserts the class `jax.Array`",
    r"test_trivial_computations|test_std_basis": "calls private functions of JAX",
    r"test_platform_dependent_with_primitive_with_lowering_error|test_dce_sink_vmap": "binds a primitive of JAX",
    r"test_issue_29329": "binds a primitive of JAX: `platform_dependent`",
    r"test_remat_of_jit_input_to_output_forwarding": "reads JAX's residuals",
    r"test_disallowed_bf16_reductions": "bfloat16",
    r"test_large_python_ints": "asserts an error where NumPy promotes",
    r"test_linearize_aval_error": "asserts an error: a Python int as a tangent, which is a weak number here",
    r"test_linear_transpose_error": "asserts an error: a Python float as a complex cotangent, a weak number here",
    r"test_escaped_tracer(s_incompatible_sublevel|_omnistaging)|test_nondiff_arg_tracer_error": (
        "asserts an error: a value of an inner function, which is in the same trace here, used outside of it"
    ),
    r"CustomVJP3Test.test_(closed_over_tracer3|closed_over_vmap_tracer|closure_with_vmap2)$": (
        "asserts an error: a rule that closes over a traced value, which it may here"
    ),
    r"CustomVmapTest.test_(closure|jvp_closure)$": "a rule whose result has a shape that the function's has not",
    r"CustomVmapTest.test_jvp_dataflow_violation": "a rule of `custom_jvp` whose result is not the function's",
    r"CustomVmapTest.test_partial_eval_raises": "asserts an error: the gradient of a function with custom_vmap",
    r"test_maybe_perturbed_internal_helper_function": "calls private functions of JAX",
}
_KINDS = (CtrlgradError, TypeError, ValueError, IndexError, AttributeError, NotImplementedError, RecursionError)


class Names(types.ModuleType):
    """A module of JAX's with this library's functions in place of those that it has."""

    def __init__(self, theirs: Any, ours: dict[str, Any]) -> None:
        super().__init__(theirs.__name__)
        self.__dict__.update(ours)
        self._theirs = theirs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._theirs, name)


def _public(module: Any) -> dict[str, Any]:
    return {name: getattr(module, name) for name in module.__all__}


def names() -> Names:
    """The module `jax` of the tests."""
    from ctrlgrad import ad_checkpoint, custom_batching, lax, nn, random
    from ctrlgrad import numpy as cnp
    from ctrlgrad.scipy import linalg, special

    numpy = _public(cnp) | {"ndarray": (np.ndarray, np.generic, Tensor)}
    scipy = Names(
        jax.scipy,
        {"special": Names(jax.scipy.special, _public(special)), "linalg": Names(jax.scipy.linalg, _public(linalg))},
    )
    ours = {name: value for name, value in _public(cg).items() if not inspect.ismodule(value)}
    ours |= {
        "lax": Names(jax.lax, _public(lax)),
        "numpy": Names(jax.numpy, numpy),
        "nn": Names(jax.nn, _public(nn)),
        "random": Names(jax.random, _public(random)),
        "scipy": scipy,
        "Array": (np.ndarray, np.generic, Tensor),
        "remat": cg.checkpoint,
        "ad_checkpoint": Names(jax.ad_checkpoint, _public(ad_checkpoint)),
        "custom_batching": Names(jax.custom_batching, _public(custom_batching)),
        "custom_derivatives": Names(jax._src.custom_derivatives, _public(custom_derivatives)),
    }
    return Names(jax, ours)


class Imports(ast.NodeTransformer):
    """Imports of JAX's public modules become attributes of `_names`."""

    def visit_Import(self, node: ast.Import) -> list[ast.stmt]:
        return [statement for alias in node.names for statement in self._module(alias)]

    def _module(self, alias: ast.alias) -> list[ast.stmt]:
        if alias.name.split(".")[0] != "jax" or "_src" in alias.name:
            return [ast.Import([alias])]
        load = ast.Import([ast.alias(alias.name, "_module")])
        if alias.asname:
            return [load, *_assign(alias.asname, alias.name.split(".")[1:])]
        return [load, *_assign("jax", [])]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        path = (node.module or "").split(".")
        if node.module == "jax._src":
            # The names of these modules are public elsewhere.
            ours = {"api": [], "custom_derivatives": ["custom_derivatives"]}
            return [
                part
                for a in node.names
                for part in (_assign(a.name, ours[a.name]) if a.name in ours else [ast.ImportFrom(node.module, [a], 0)])
            ]
        if path[0] != "jax" or "_src" in path:
            return node
        found = [part for a in node.names for part in _assign(a.asname or a.name, [*path[1:], a.name])]
        return [ast.Import([ast.alias(node.module or "", "_module")]), *found]


def _assign(name: str, path: Iterable[str]) -> list[ast.stmt]:
    return ast.parse(f"{name} = " + ".".join(["_names", *path])).body


def load(path: Path, found: Names) -> types.ModuleType:
    """The tests of a file, on these functions."""
    tree = ast.fix_missing_locations(Imports().visit(ast.parse(path.read_text())))
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    module.__dict__["_names"] = found
    sys.modules[path.stem] = module
    exec(compile(tree, str(path), "exec"), module.__dict__)
    return module


def _check_grads(
    read: Callable[..., Any],
    f: Callable[..., Any],
    args: Any,
    order: int,
    modes: Any = ("fwd", "rev"),
    atol: Any = None,
    rtol: Any = None,
    eps: Any = None,
) -> None:
    """JAX's comparison of derivatives with finite differences, with this library's derivatives."""
    eps = eps or public_test_util.EPS

    def check(f: Callable[..., Any], args: Any, order: int) -> None:
        if "fwd" in modes:
            public_test_util.check_jvp(f, functools.partial(cg.jvp, f), args, atol, rtol, eps)
            if order > 1:
                check(lambda *xs: cg.jvp(f, xs, xs), args, order - 1)
        if "rev" in modes:
            public_test_util.check_vjp(f, functools.partial(cg.vjp, f), args, atol, rtol, eps)
            if order > 1:

                def pulled(*xs: Any) -> Any:
                    out, pull = cg.vjp(f, *xs)
                    return pull(out)

                check(pulled, args, order - 1)

    check(read(f), tuple(args), order)


def _raises(self: Any, kind: Any, *args: Any, **kwargs: Any) -> Any:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return unittest.TestCase.assertRaises(self, (*kinds, *_KINDS), *args, **kwargs)


def _raises_text(self: Any, kind: Any, text: Any, *args: Any, **kwargs: Any) -> Any:
    return _raises(self, kind, *args, **kwargs)


def _compile_and_check(
    self: Any,
    jit: Callable[..., Any],
    fun: Any,
    args_maker: Any,
    *,
    check_dtypes: bool = True,
    rtol: Any = None,
    atol: Any = None,
    tol: Any = None,
    **_: Any,
) -> None:
    args = args_maker()
    self.assertAllClose(jit(fun)(*args), fun(*args), check_dtypes=check_dtypes, atol=atol or tol, rtol=rtol or tol)


def reaches_inside(test: unittest.TestCase) -> bool:
    """Return true if a test's own text uses JAX's internals."""
    method = getattr(type(test), test._testMethodName)
    for part in (inspect.unwrap(method), *(c.cell_contents for c in getattr(method, "__closure__", None) or ())):
        try:
            if re.search(INTERNALS, inspect.getsource(part)):
                return True
        except (TypeError, OSError):
            continue
    return False


class _Result(unittest.TestResult):
    def __init__(self, verbose: bool) -> None:
        super().__init__()
        self.verbose = verbose
        self.passed: list[unittest.TestCase] = []
        self.failed: set[str] = set()

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.passed.append(test)

    def addFailure(self, test: Any, err: Any) -> None:
        self._keep(test, err)

    def addError(self, test: Any, err: Any) -> None:
        self._keep(test, err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self._keep(test, err)

    def _keep(self, test: Any, err: Any) -> None:
        first = f"{err[0].__name__}: " + " | ".join(line.strip() for line in str(err[1]).splitlines() if line.strip())
        self.failed.add(test.id())
        whole = self._exc_info_to_string(err, test) if self.verbose else first[:300]
        print(f"{type(test).__name__}.{test._testMethodName}: {whole}", flush=True)


def _tests(suite: Any) -> Iterable[Any]:
    for part in suite:
        if isinstance(part, unittest.TestSuite):
            yield from _tests(part)
        else:
            yield part


def _too_long(*_: Any) -> None:
    raise TimeoutError("the test took too long")


def main() -> None:
    """Run the tests of one file and say what passed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("file", type=Path)
    options.add_argument("--engine", default="reference")
    options.add_argument("--through", choices=("lax", "from_jax"), default="lax", help="what of this library is tested")
    options.add_argument("--only", default="", help="a regular expression of the tests' names (Class.method)")
    options.add_argument("--verbose", action="store_true", help="whole errors")
    options.add_argument("--all", action="store_true", help="also tests that reach into JAX")
    options.add_argument("--seconds", type=int, default=120, help="the most that one test may take")
    chosen = options.parse_args()
    signal.signal(signal.SIGALRM, _too_long)
    jax.config.update("jax_enable_x64", True)
    sys.argv = sys.argv[:1]
    reads = chosen.through == "from_jax"
    module_names = jax_through.names(Names) if reads else names()
    jtu.check_grads = functools.partial(_check_grads, jax_through.ours_of if reads else lambda f: f)
    jtu.JaxTestCase.assertRaisesRegex = _raises_text
    jtu.JaxTestCase.assertRaises = _raises
    jtu.JaxTestCase._CompileAndCheck = functools.partialmethod(_compile_and_check, module_names.jit)
    module = load(chosen.file, module_names)
    result = _Result(chosen.verbose)
    inside = collections.Counter[bool]()
    not_asked = collections.Counter[str]()
    not_these = jax_through.NOT_ASKED if reads else NOT_ASKED
    untouched = 0
    started = time.perf_counter()
    with cg.options(engine=chosen.engine):
        for test in _tests(unittest.defaultTestLoader.loadTestsFromModule(module)):
            name = f"{type(test).__name__}.{test._testMethodName}"
            if not re.search(chosen.only, name):
                continue
            internal = reaches_inside(test)
            inside[internal] += 1
            reason = next((why for pattern, why in not_these.items() if re.search(pattern, name)), None)
            if reason is not None and not internal:
                not_asked[reason] += 1
            if (not internal and reason is None) or chosen.all:
                before = jax_through.evaluations
                signal.alarm(chosen.seconds)
                test.run(result)
                signal.alarm(0)
                if reads and before == jax_through.evaluations and test.id() not in result.failed:
                    untouched += 1
                    result.passed = [x for x in result.passed if x is not test]
    print(
        f"{len(result.passed)} passed, {len(result.failed)} failed, {len(result.skipped)} skipped by the tests, "
        f"{inside[True]} reach into JAX, {not_asked.total()} are not asked, "
        + f"{untouched} evaluate nothing, " * reads
        + f"{time.perf_counter() - started:.0f} s"
    )
    for reason, count in not_asked.items():
        print(f"  not asked, {count}: {reason}")


if __name__ == "__main__":
    main()
