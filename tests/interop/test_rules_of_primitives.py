"""Primitives with derivatives of their own keep them, in and outside of batches, scans and branches; primitives that
no table names are read by what JAX knows of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from interop.libraries import close, directional
from jax import lax
from jax.experimental import sparse
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir
from jax.sharding import Mesh, PartitionSpec

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import (
    DifferentiationError,
    GradientMismatch,
    TypeMismatchError,
    UnsupportedPrimitiveError,
    UserInputError,
)
from ctrlgrad.interop.primitives import TABLE

X = np.array([0.5, 0.9, 1.4])
DENSE = np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0], [0.0, 0.0, 4.0]])


def judged(fn: Callable[..., Any], x: np.ndarray = X, tolerance: float = 1e-8, jax_can: bool = True) -> None:
    """Value, gradient and forward mode, against JAX and against finite differences."""
    with jax.enable_x64(True), cg.options(engine="reference"):
        read, compiled = cg.from_jax(fn), jax.jit(fn)
        close(read(x), compiled(x), tolerance)
        gradient = cg.grad(read)(x)
        if jax_can:
            close(gradient, jax.jit(jax.grad(fn))(x), tolerance)
        difference, found = directional(compiled, (x,), (gradient,))
        assert found == pytest.approx(difference, rel=1e-6, abs=1e-6)


def rooted(name: str) -> Callable[[Any], Any]:
    optimistix = pytest.importorskip("optimistix")
    equation = lambda y, a: y**2 - a
    if name == "Bisection":
        solver, bounds = optimistix.Bisection(1e-12, 1e-12), {"lower": 0.0, "upper": 5.0}
        return lambda a: optimistix.root_find(equation, solver, jnp.array(1.0), a, options=bounds).value
    solver = getattr(optimistix, name)(1e-11, 1e-11)
    return lambda a: optimistix.root_find(
        equation, solver, jnp.array([1.0, 2.0]), a * jnp.array([1.0, 2.0])
    ).value.sum()


@pytest.mark.parametrize("name", ["Newton", "Chord", "Dogleg", "Bisection"])
def test_a_batch_of_roots_has_the_derivative_of_the_equation(name: str) -> None:
    root = rooted(name)
    judged(lambda x: jnp.sum(jax.vmap(root)(x) * jnp.arange(1.0, 4.0)))


def solved(name: str) -> Callable[[Any], Any]:
    lineax, matrix = pytest.importorskip("lineax"), jnp.array([[3.0, 1.0], [1.0, 2.0]])
    solver = getattr(lineax, name)(*((1e-12, 1e-12) if name in ("CG", "GMRES") else ()))
    tag = lineax.positive_semidefinite_tag if name in ("Cholesky", "CG") else ()

    def solve(a: Any) -> Any:
        operator = lineax.MatrixLinearOperator(matrix * a + jnp.eye(2), tag)
        return lineax.linear_solve(operator, a * jnp.array([1.0, 2.0]) + 1.0, solver).value.sum()

    return solve


@pytest.mark.parametrize("name", ["LU", "QR", "Cholesky", "CG"])
@pytest.mark.parametrize("around", ["vmap", "vmap of vmap", "scan", "cond"])
def test_a_linear_solution_has_the_derivative_of_the_equation(name: str, around: str) -> None:
    solve = solved(name)
    forms: dict[str, Callable[[Any], Any]] = {
        "vmap": lambda x: jnp.prod(jax.vmap(solve)(x)),
        "vmap of vmap": lambda x: jnp.prod(jax.vmap(jax.vmap(solve))(jnp.stack([x, x + 0.5]))),
        "scan": lambda x: lax.scan(lambda c, a: (c * solve(a), None), 1.0, x)[0],
        "cond": lambda x: jnp.prod(jax.vmap(lambda a: lax.cond(a > 0.7, solve, jnp.sin, a))(x)),
    }
    judged(forms[around])


def inlined_not() -> Callable[[Any], Any]:
    internal = pytest.importorskip("equinox.internal")
    return internal.noinline(lambda y: jnp.sin(y) * y)


@pytest.mark.parametrize("around", ["nothing", "vmap", "scan"])
def test_a_function_that_equinox_does_not_inline_has_its_derivative(around: str) -> None:
    fn = inlined_not()
    forms: dict[str, Callable[[Any], Any]] = {
        "nothing": lambda x: jnp.sum(fn(x)),
        "vmap": lambda x: jnp.prod(jax.vmap(fn)(x)),
        "scan": lambda x: lax.scan(lambda c, y: (fn(c) * y, None), x[0], x)[0],
    }
    judged(forms[around])


def coo(x: Any) -> sparse.BCOO:
    found = sparse.BCOO.fromdense(DENSE, nse=4)
    return sparse.BCOO((found.data * x[0], found.indices), shape=found.shape)


def csr(x: Any) -> sparse.BCSR:
    found = sparse.BCSR.fromdense(DENSE, nse=4)
    return sparse.BCSR((found.data * x[0], found.indices, found.indptr), shape=found.shape)


def ragged(a: Any, b: Any, left: list[int], right: list[int], batch: list[int]) -> Any:
    """A product whose contracting axis, or whose batch axis, is in groups of one and of two."""
    numbers = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=((left, right), (batch, batch)),
        lhs_ragged_dimensions=batch or left,
        rhs_group_dimensions=[],
    )
    return lax.ragged_dot_general(a, b, jnp.array([1, 2]), numbers)


SPARSE: dict[str, Callable[[Any], Any]] = {
    "bcoo_dot_general": lambda x: jnp.sum(coo(x) @ x),
    "bcoo_dot_general of a batch": lambda x: jnp.prod(jax.vmap(lambda a: jnp.sum(coo(a[None]) @ jnp.arange(3.0)))(x)),
    "bcoo_dot_general in a scan": lambda x: lax.scan(lambda c, _: (jnp.tanh(coo(x) @ c), None), x, None, length=3)[
        0
    ].sum(),
    "bcoo_fromdense": lambda x: jnp.sum(sparse.BCOO.fromdense(DENSE * x, nse=4).T.todense() * DENSE),
    "bcoo_reduce_sum": lambda x: jnp.sum(sparse.bcoo_reduce_sum(coo(x), axes=(0,)).todense() * x),
    "bcoo_slice": lambda x: jnp.sum(coo(x)[1:, 1:].todense() ** 2),
    "sparsify": lambda x: sparse.sparsify(lambda m, v: jnp.sum(jnp.sin((m @ v) * 2.0)))(coo(x), x),
    "bcoo_transpose": lambda x: jnp.sum(coo(x).T.todense() @ x),
    "bcoo_multiply_dense": lambda x: jnp.sum((coo(x) * jnp.outer(x, x)).todense() ** 2),
    "bcoo_multiply_sparse": lambda x: jnp.sum((coo(x) * coo(x)).todense()),
    "a sum of two": lambda x: jnp.sum(sparse.sparsify(lambda a, b: a + b)(coo(x), coo(x**2)).todense() ** 2),
    "bcoo_concatenate": lambda x: jnp.sum(sparse.bcoo_concatenate([coo(x), coo(x**2)], dimension=0).todense() ** 2),
    "bcoo_broadcast_in_dim": lambda x: jnp.sum(
        sparse.bcoo_broadcast_in_dim(coo(x), shape=(2, 3, 3), broadcast_dimensions=(1, 2)).todense() ** 2
    ),
    "bcoo_dot_general_sampled": lambda x: jnp.sum(
        sparse.bcoo_dot_general_sampled(
            jnp.outer(x, x), jnp.outer(x, X), coo(x).indices, dimension_numbers=(([1], [0]), ([], []))
        )
        ** 2
    ),
    "bcoo_sum_duplicates": lambda x: jnp.sum(coo(x).sum_duplicates(nse=4).data ** 2),
    "bcsr_fromdense": lambda x: jnp.sum(sparse.BCSR.fromdense(jnp.where(DENSE != 0, DENSE * x, 0.0), nse=4).data ** 2),
    "bcsr_dot_general": lambda x: jnp.sum(csr(x) @ x),
    "bcsr_dot_general of a matrix": lambda x: jnp.sum((csr(x) @ jnp.outer(x, x)) ** 2),
    "bcsr_todense": lambda x: jnp.sum(csr(x).todense() * x),
    "ragged_dot of an empty group": lambda x: jnp.sum(
        lax.ragged_dot(jnp.outer(x, x), jnp.stack([DENSE, DENSE * x]), jnp.array([0, 3])) ** 2
    ),
    "ragged_dot of fewer rows": lambda x: jnp.sum(
        lax.ragged_dot(jnp.outer(x, x), jnp.stack([DENSE, DENSE * x]), jnp.array([1, 1])) ** 2
    ),
    "ragged contracting axis": lambda x: jnp.sum(
        ragged(jnp.outer(x, x), jnp.outer(X, x) * x[:, None], [1], [0], []) ** 2
    ),
    "ragged batch axis": lambda x: jnp.sum(
        ragged(jnp.stack([jnp.outer(x, x), DENSE * x, DENSE]), jnp.stack([jnp.outer(x, X)] * 3) * x[0], [2], [1], [0])
        ** 2
    ),
    "ragged_dot": lambda x: jnp.sum(lax.ragged_dot(jnp.outer(x, x), jnp.stack([DENSE, DENSE * x]), jnp.array([1, 2]))),
}


@pytest.mark.parametrize("name", SPARSE)
def test_a_primitive_without_an_entry_is_read_by_its_implementation_and_rules(name: str) -> None:
    judged(SPARSE[name], jax_can="axis" not in name)  # JAX does not differentiate these groups


def references(x: Any) -> Any:
    kept = jax.new_ref(jnp.zeros(3))
    kept[...] = x * 2.0
    kept[0] += x[1] ** 2
    return jnp.sum(kept[...] ** 2)


def references_in_a_checkpoint(x: Any) -> Any:
    def inside(v: Any) -> Any:
        kept = jax.new_ref(v * 1.0)
        kept[0] = jnp.sin(kept[1])
        return jnp.sum(kept[...] * v)

    return jax.checkpoint(inside)(x)


def references_in_a_loop(x: Any) -> Any:
    kept = jax.new_ref(x * 1.0)

    def step(c: Any, i: Any) -> Any:
        kept[i] = jnp.sin(kept[i]) + c
        return c * 0.5, None

    c, _ = lax.scan(step, x[0], jnp.arange(3))
    return jnp.sum(kept[...] ** 2) + c


def over_a_mesh(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Sum of a function of the one device of a mesh."""
    mesh, rows = Mesh(np.array(jax.devices()[:1]), ("i",)), PartitionSpec("i")
    return lambda x: jax.shard_map(fn, mesh=mesh, in_specs=rows, out_specs=rows)(x).sum()


FORMS: dict[str, Callable[[Any], Any]] = {
    "new_ref": references,
    "new_ref in a checkpoint": references_in_a_checkpoint,
    "new_ref in a scan": references_in_a_loop,
    "shard_map": over_a_mesh(lambda v: v * lax.psum(v**2, "i")),
    "shard_map of a scan": over_a_mesh(
        lambda v: lax.scan(lambda c, _: (jnp.sin(c) + lax.psum(c, "i") * 0.1, None), v, None, length=3)[0]
    ),
    "all_gather": over_a_mesh(lambda v: lax.all_gather(v, "i")[0] * v),
    "all_gather tiled": over_a_mesh(lambda v: lax.all_gather(v, "i", tiled=True) * v),
    "psum_scatter": over_a_mesh(lambda v: lax.psum_scatter(v[None] ** 2, "i") * v),
    "psum_scatter tiled": over_a_mesh(lambda v: lax.psum_scatter(v**2, "i", tiled=True) * v),
    "ppermute": over_a_mesh(lambda v: lax.ppermute(v**2, "i", [(0, 0)])),
    "ppermute to none": over_a_mesh(lambda v: lax.ppermute(v**2, "i", []) + v),
    "all_to_all": over_a_mesh(lambda v: lax.all_to_all(jnp.outer(v, v)[None], "i", 0, 0)[0].sum(0)),
    "axis_index": over_a_mesh(lambda v: v ** (lax.axis_index("i") + 2.0)),
    "pmap": lambda x: jax.pmap(lambda v: v * lax.psum(v**2, "i"), axis_name="i")(x[None]).sum(),
}


@pytest.mark.skipif(not (hasattr(jax, "new_ref") and hasattr(jax, "shard_map")), reason="this JAX has neither")
@pytest.mark.parametrize("name", FORMS)
def test_references_and_programs_over_one_device_are_read(name: str) -> None:
    judged(FORMS[name])


@pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="this JAX has no shard_map")
@pytest.mark.parametrize("name", [name for name in FORMS if "ref" not in name])
def test_programs_over_one_device_have_second_derivatives(name: str) -> None:
    """JAX's own gradients of them hold `reshard`, an identity on values."""
    judged(lambda x: jnp.sum(jnp.sin(jax.grad(FORMS[name])(x))))


@pytest.mark.parametrize("name", [name for name in SPARSE if "ragged" not in name])
def test_lanes_that_have_ended_keep_the_derivatives_of_primitives_without_an_entry(name: str) -> None:
    def lane(x: Any, trips: Any) -> Any:
        step = lambda c: (c[0] + 1, c[1] + 0.05 * jnp.tanh(0.1 * SPARSE[name](c[1])))
        return lax.while_loop(lambda c: c[0] < trips, step, (0, x))[1]

    both = lambda x: jnp.sum(jax.vmap(lane)(jnp.stack([x, x * 1.1]), jnp.array([1, 3])))
    judged(both, jax_can=False)  # JAX does not reverse such a loop, nor map a ragged product over its rows


def mapped(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: jnp.prod(jax.vmap(fn, axis_name="rows")(x))


OVER_ROWS: dict[str, Callable[[Any], Any]] = {
    "psum and pmean": mapped(lambda v: v - lax.pmean(v, "rows") ** 2 + lax.psum(v * v, "rows")),
    "in a scan": mapped(
        lambda v: lax.scan(lambda c, _: (jnp.sin(c) - lax.pmean(c, "rows"), None), v, None, length=3)[0]
    ),
    "in a while": mapped(lambda v: lax.fori_loop(0, 3, lambda i, c: 0.5 * c + lax.psum(c, "rows"), v)),
    "two names": lambda x: jnp.sum(
        jax.vmap(jax.vmap(lambda v: v * lax.psum(v * v, ("a", "b")) - lax.pmean(v, "a"), axis_name="b"), axis_name="a")(
            jnp.outer(x, x)
        )
    ),
}


@pytest.mark.parametrize("name", OVER_ROWS)
def test_reductions_over_the_name_of_a_mapped_axis(name: str) -> None:
    judged(OVER_ROWS[name])


def test_the_largest_and_smallest_of_a_mapped_axis() -> None:
    judged(mapped(lambda v: v * lax.pmax(v, "rows") + lax.pmin(v, "rows")), jax_can=False)


@jax.custom_batching.custom_vmap
def doubled_sine(x: Any) -> Any:
    return 2.0 * jnp.sin(x)


@doubled_sine.def_vmap
def _rows(size: int, batched: Any, x: Any) -> Any:
    return 2.0 * jnp.sin(x), True


@pytest.mark.parametrize("around", ["nothing", "vmap", "scan"])
def test_a_function_with_a_batching_rule_is_read(around: str) -> None:
    forms: dict[str, Callable[[Any], Any]] = {
        "nothing": lambda x: jnp.sum(doubled_sine(x)),
        "vmap": lambda x: jnp.prod(jax.vmap(doubled_sine)(x)),
        "scan": lambda x: lax.scan(lambda c, y: (doubled_sine(c) * y, None), x[0], x)[0],
    }
    judged(forms[around], jax_can=around == "vmap")  # JAX cannot linearize its own primitive


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def thrice(fn: Callable[[Any], Any], x: Any) -> Any:
    return fn(x)


@thrice.defjvp
def _thrice(fn: Callable[[Any], Any], primals: Any, tangents: Any) -> Any:
    return fn(primals[0]), 3.0 * jax.jvp(fn, primals, tangents)[1]


def test_a_rule_whose_static_function_closes_over_a_traced_value() -> None:
    fn = lambda x, w: thrice(lambda y: y * w, x)
    assert cg.grad(cg.from_jax(fn))(1.0, 2.0) == jax.jit(jax.grad(fn))(1.0, 2.0) == 6.0


def test_to_differentiate_what_a_function_with_a_rule_closes_over_is_refused_as_in_jax() -> None:
    """The rule says nothing of it: its derivative would be zero."""
    with pytest.raises(DifferentiationError, match=r"closes over a value that is differentiated(.|\n)*stop_gradient"):
        cg.grad(cg.from_jax(lambda x: thrice(lambda y: y * x, x)))(1.0)

    def reverse(x: Any) -> Any:
        fn = jax.custom_vjp(lambda y: y * x)
        fn.defvjp(lambda y: (y * x, None), lambda _, t: (3.0 * t,))
        return fn(x)

    with pytest.raises(DifferentiationError, match="closes over a value that is differentiated"):
        cg.grad(cg.from_jax(reverse))(1.0)


def test_a_primitive_of_compiled_code_is_refused_by_name() -> None:
    found = sparse.BCSR.fromdense(DENSE.astype(np.float32))
    solve = lambda x: sparse.linalg.spsolve(found.data, found.indices, found.indptr, x)
    with pytest.raises(UnsupportedPrimitiveError, match="'spsolve' has no translation"):
        cg.from_jax(solve)(X.astype(np.float32))


WAVE = lambda x: jnp.sin(x) + x * x
KEY = jax.random.key_data(jax.random.key(0))
AROUND: dict[str, Callable[[Any], Any]] = {
    "itself": cg.from_jax(WAVE),
    "lambda": lambda x: cnp.sum(cg.from_jax(WAVE)(x)),
    "function": cg.function(lambda x: cg.from_jax(WAVE)(x) * x),
    "known operand": lambda x: cg.from_jax(lambda x, n: WAVE(x) * n)(x, np.arange(3.0)),
    "key": lambda x: cg.from_jax(lambda x, k: WAVE(x) * jax.random.normal(k, (3,)))(x, jax.random.key(0)),
    "words of a key": lambda x: cg.from_jax(
        lambda x, k: WAVE(x) * jax.random.normal(jax.random.wrap_key_data(k), (3,))
    )(x, KEY),
    "fori_loop": lambda x: cg.fori_loop(0, 3, lambda i, c: cg.from_jax(WAVE)(c), x),
    "while_loop": lambda x: cg.while_loop(lambda c: cnp.sum(c) < 10, lambda c: cg.from_jax(WAVE)(c), x),
    "cond": lambda x: cg.cond(x[0] > 0, lambda: cg.from_jax(WAVE)(x), lambda: x),
    "loop of JAX in a loop": lambda x: cg.while_loop(
        lambda c: cnp.sum(c) < 10,
        cg.from_jax(lambda c: lax.scan(lambda c, _: (WAVE(c), c), c, None, length=2)[0]),
        x,
    ),
    "vmap of vmap": lambda x: cg.vmap(
        cg.vmap(cg.from_jax(lambda a, b: WAVE(a) * b), (0, None)), (None, 0), axis_size=3
    )(x, x),
    "grad": lambda x: cg.grad(lambda y: cnp.sum(cg.from_jax(WAVE)(y)))(x),
    "jvp": lambda x: cg.jvp(cg.from_jax(WAVE), (x,), (x,))[1],
    "vmap of grad": lambda x: cg.vmap(cg.grad(cg.from_jax(WAVE)))(x),
}


@pytest.mark.parametrize("name", AROUND)
def test_a_function_read_from_jax_is_judged_by_jaxs_original(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that drops a derivative is found: a translation of what it has read would agree with the zero."""
    fn = AROUND[name]
    with jax.enable_x64(True):
        report = cg.check_grads(fn, (X,), order=2, modes=("rev", "fwd"), against=("jax",))
        assert {row.judge for row in report.rows} == {"jax (original)"}
        sine = TABLE["sin"]
        monkeypatch.setitem(TABLE, "sin", lambda equation, x: cg.stop_gradient(sine(equation, x)))
        if name in ("itself", "function"):  # those have been read already
            fn = cg.from_jax(lambda x: WAVE(x) * x)
        with pytest.raises(GradientMismatch, match=r"jax \(original\)"):
            cg.check_grads(fn, (X,), against=("jax",))


def test_without_64_bits_the_original_is_called_without_them() -> None:
    read = cg.from_jax(WAVE, x64=False)
    # A copy: JAX 0.12 keeps the 64 bits of a constant of NumPy's that it met with 64 bits.
    report = cg.check_grads(lambda x: read(x) * x, (X.copy(),), order=2, against=("jax",))
    assert {row.judge for row in report.rows} == {"jax (original)"}


def test_a_failure_of_jax_that_refuses_no_derivative_is_reported() -> None:
    """A rule that breaks JAX's demands is a mistake: the translation does not judge in JAX's place."""

    @jax.custom_jvp
    def broken(x: Any) -> Any:
        return x * x

    broken.defjvp(lambda primals, tangents: (primals[0] ** 2, tangents[0][:1]))
    with pytest.raises(
        UserInputError, match=r"JAX fails on the function that from_jax(.|\n)*got: TypeError: Custom JVP"
    ):
        cg.check_grads(cg.from_jax(broken, x64=False), (np.float32(X),), against=("jax",))


def test_where_jax_refuses_a_derivative_the_translation_is_the_judge() -> None:
    with jax.enable_x64(True):
        read = cg.from_jax(lambda x: lax.while_loop(lambda c: c < 10.0, lambda c: c * 2.5, x))
        report = cg.check_grads(read, (1.0,), order=2, modes=("rev", "fwd"))
    assert any("jax (scan)" in row.judge for row in report.rows)


def _kernels() -> dict[str, Callable[[Any], Any]]:
    pallas = pytest.importorskip("jax.experimental.pallas")

    def call(kernel: Callable[..., Any], **options: Any) -> Callable[[Any], Any]:
        struct = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)
        return lambda x: pallas.pallas_call(kernel, out_shape=struct(x), interpret=True, **options)(x)

    def whole(x: Any, out: Any) -> None:
        out[...] = jnp.sin(x[...]) * x[...]

    def by_block(x: Any, out: Any) -> None:
        out[...] = x[...] ** 2 * (pallas.program_id(0) + 1)

    def accumulated(x: Any, out: Any) -> None:
        @pallas.when(pallas.program_id(0) == 0)
        def _() -> None:
            out[...] = jnp.zeros_like(out)

        out[...] += jnp.sin(x[...] * (pallas.program_id(0) + 1.0))

    def looped(x: Any, out: Any) -> None:
        def body(i: Any, _: Any) -> None:
            out[pallas.ds(i, 1)] = jnp.cos(x[pallas.ds(i, 1)]) * i

        lax.fori_loop(0, 3, body, None)

    block = pallas.BlockSpec((1,), lambda i: (i,))
    same = pallas.BlockSpec((3,), lambda i: (0,))
    return {
        "whole": call(whole),
        "by block": call(by_block, grid=(3,), in_specs=[block], out_specs=block),
        "accumulated": call(accumulated, grid=(4,), in_specs=[same], out_specs=same),
        "looped": call(looped),
        "mapped": jax.vmap(lambda x: call(whole)(x[None])[0]),
    }


@pytest.mark.parametrize("name", ["whole", "by block", "accumulated", "looped", "mapped"])
def test_a_pallas_kernel_is_read_as_it_is_interpreted(name: str) -> None:
    """JAX has no reverse mode of it, and forward mode of some; here it is differentiated as what it computes."""
    kernel = _kernels()[name]
    judged(lambda x: jnp.sum(kernel(x) * x), jax_can=False)
    judged(lambda x: lax.scan(lambda c, _: (0.5 * kernel(c), None), x, None, length=3)[0].sum(), jax_can=False)
    if name == "whole":
        with jax.enable_x64(True):
            read = cg.from_jax(kernel)
            close(cg.jvp(read, (X,), (X,))[1], jax.jvp(kernel, (X,), (X,))[1], 1e-12)
            rows = np.stack([X, 2 * X])
            close(cg.vmap(read)(rows), jax.vmap(kernel)(rows), 1e-12)


def test_a_compiled_pallas_kernel_is_refused_by_name() -> None:
    pallas = pytest.importorskip("jax.experimental.pallas")
    kernel = pallas.pallas_call(lambda x, out: None, out_shape=jax.ShapeDtypeStruct((3,), np.float32))
    with pytest.raises(UnsupportedPrimitiveError, match=r"compiled for an accelerator(.|\n)*interpret=True"):
        cg.from_jax(kernel, x64=False)(X.astype(np.float32))


SCALED = sparse.BCOO.fromdense(DENSE.astype(np.float32))


def _product_of_sparse(x: Any) -> Any:
    return (sparse.BCOO((x[0] * SCALED.data, SCALED.indices), shape=SCALED.shape) @ SCALED).data.sum()


@jax.custom_jvp
def _broken_rule(x: Any) -> Any:
    return x * x


_broken_rule.defjvp(lambda primals, tangents: (primals[0] ** 2, tangents[0][:1]))

FAILING: dict[str, tuple[Callable[[Any], Any], str]] = {
    "shapes": (lambda x: x.reshape(7), "cannot trace <lambda>(.|\n)*TypeError: cannot reshape"),
    "a decision": (lambda x: x if x[0] > 0 else -x, "cannot trace <lambda>(.|\n)*TracerBoolConversionError"),
    "a carry": (lambda x: lax.scan(lambda c, _: (c[:1], None), x, None, length=2)[0], "cannot trace(.|\n)*scan body"),
    "an unbound axis": (lambda x: lax.psum(x, "i"), "cannot trace(.|\n)*unbound axis name"),
    "no reverse mode": (
        lambda x: jax.grad(lambda y: lax.while_loop(lambda c: c[0] < 9, lambda c: 2 * c, y).sum())(x),
        "cannot trace(.|\n)*Reverse-mode differentiation does not work",
    ),
    "no transpose": (_product_of_sparse, "does not differentiate 'bcoo_spdot_general'(.|\n)*Transpose rule"),
    "a broken rule": (lambda x: _broken_rule(x).sum(), "does not differentiate 'custom_jvp_call'(.|\n)*Custom JVP"),
}
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "call": lambda f, x: f(x),
    "vmap": lambda f, x: cg.vmap(f)(np.stack([x, x])),
    "function": lambda f, x: cg.function(f)(x),
    "grad": lambda f, x: cg.grad(f)(x),
    "hessian": lambda f, x: cg.hessian(f)(x),
}


@pytest.mark.parametrize("name", FAILING)
def test_no_error_of_jax_reaches_the_user_as_it_is(name: str) -> None:
    """The error says the operation, the line in this file, what JAX said and what to do."""
    fn, text = FAILING[name]
    x = X.astype(np.float32)
    for place, call in CALLS.items():
        if "differentiate" in text and place in ("call", "vmap", "function"):
            call(cg.from_jax(fn), x)
            continue
        with pytest.raises(cg.CtrlgradError, match=text) as raised:
            call(cg.from_jax(fn), x)
        assert "test_rules_of_primitives.py" in str(raised.value) and "\n  try: " in str(raised.value)


def test_an_error_of_the_users_code_stays_as_it_is() -> None:
    def rule(primals: Any, tangents: Any) -> Any:
        raise KeyError("mine")

    ruled = jax.custom_jvp(jnp.sin)
    ruled.defjvp(rule)
    for call in (lambda: cg.from_jax(lambda x: {}["mine"])(1.0), lambda: cg.grad(cg.from_jax(ruled))(1.0)):
        with pytest.raises(KeyError, match="mine") as raised:
            call()
        assert any("test_rules_of_primitives.py" in note for note in raised.value.__notes__)


def test_arguments_that_jax_does_not_flatten_are_refused() -> None:
    with pytest.raises(
        TypeMismatchError, match=r"does not take the arguments of <lambda>(.|\n)*pytree dictionary keys"
    ):
        cg.from_jax(lambda x: x)({1: X, "a": X})


def _slope_with_a_primitive_of_its_own() -> Callable[[Any], Any]:
    """A sine whose tangent is a primitive: its implementation asks the tangent, so that only its rule transposes it."""
    primitive = Primitive("slope_of_a_package")

    def implementation(t: Any, x: Any) -> Any:
        return lax.cond(t > 0, lambda: t * jnp.cos(x), lambda: -((-t) * jnp.cos(x)))

    primitive.def_impl(implementation)
    primitive.def_abstract_eval(lambda t, x: t)
    mlir.register_lowering(primitive, mlir.lower_fun(implementation, multiple_results=False))
    ad.primitive_transposes[primitive] = lambda ct, t, x: (ct * jnp.cos(x), None)

    fn = jax.custom_jvp(jnp.sin)
    fn.defjvp(lambda primals, tangents: (fn(*primals), primitive.bind(*tangents, *primals)))
    return fn


def test_a_primitive_that_only_a_tangent_has_is_transposed_by_its_rule() -> None:
    fn = _slope_with_a_primitive_of_its_own()
    try:
        judged(lambda x: fn(x[0]) * x[1])
        judged(lambda x: lax.scan(lambda c, a: (c * fn(a * x[0]), None), x[1], x)[0])
        judged(lambda x: lax.cond(x[0] > 0.1, lambda: fn(x[0] * x[1]), lambda: x[2]))
        with jax.enable_x64(True):
            close(cg.jvp(cg.from_jax(fn), (0.5,), (2.0,))[1], 2.0 * np.cos(0.5), 1e-12)
            close(cg.hessian(cg.from_jax(fn))(0.5), -np.sin(0.5), 1e-12)
    finally:
        for primitive in [p for p in ad.primitive_transposes if p.name == "slope_of_a_package"]:
            del ad.primitive_transposes[primitive]


def test_quadratures_of_quadax() -> None:
    """Values and gradients with respect to the bounds and to the integrand, in and outside of loops."""
    quadax = pytest.importorskip("quadax")
    samples = lambda x: quadax.simpson(jnp.sin(x * x), x=jnp.cumsum(x)) * quadax.trapezoid(jnp.cos(x), x=x)
    judged(samples)
    judged(lambda x: lax.scan(lambda c, a: (c + samples(a * x), None), 0.0, x)[0])
    integral = lambda x: quadax.quadgk(lambda t: jnp.exp(-x[2] * t), jnp.array([x[0], 2.0 * x[1]]))[0]
    antiderivative = lambda x: (jnp.exp(-x[2] * x[0]) - jnp.exp(-2.0 * x[2] * x[1])) / x[2]
    with jax.enable_x64(True):
        read = cg.from_jax(integral)
        close(read(X), antiderivative(X), 1e-12)
        close(cg.grad(read)(X), jax.grad(antiderivative)(X), 1e-8)
