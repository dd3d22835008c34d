"""Named axes of `jax.vmap`, programs for one device, sparse matrices, and primitives without a translation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from interop.test_rules_in_transforms import same_gradient
from jax import lax
from jax.experimental import sparse
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir

import ctrlgrad as cg
from ctrlgrad.errors import UnsupportedPrimitiveError

ROWS = np.arange(6.0).reshape(3, 2) + 0.3
DENSE = np.array([[1.0, 0.0, 2.0], [0.0, 0.0, 3.0], [4.0, 5.0, 0.0]])
VECTOR = np.array([1.0, 2.0, 3.0])
SHORT = VECTOR.astype(np.float32)


@pytest.mark.parametrize("reduce", [lax.psum, lax.pmean])
def test_a_sum_over_rows_has_jaxs_gradient(reduce: Any) -> None:
    same_gradient(lambda x: jnp.sum(jax.vmap(lambda r: jnp.sin(r * reduce(r * r, "i")), axis_name="i")(x)), ROWS)


@pytest.mark.parametrize("reduce", [lax.psum, lax.pmean])
def test_a_sum_over_rows_in_a_scan_and_in_a_compiled_function(reduce: Any) -> None:
    def one(r: Any) -> Any:
        step = jax.jit(lambda h: jnp.sin(h * reduce(h, "i")))
        return lax.scan(lambda h, _: (step(h), None), r, length=2)[0]

    same_gradient(lambda x: jnp.sum(jax.vmap(one, axis_name="i")(x)), ROWS)


def test_a_sum_over_rows_in_a_while_loop() -> None:
    def one(r: Any) -> Any:
        return lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, jnp.sin(c[1] * lax.pmean(c[1], "i"))), (0, r))[1]

    def scanned(r: Any) -> Any:
        return lax.scan(lambda h, _: (jnp.sin(h * lax.pmean(h, "i")), None), r, length=2)[0]

    with jax.enable_x64(True):
        found = cg.grad(cg.from_jax(lambda x: jnp.sum(jax.vmap(one, axis_name="i")(x))))(ROWS)
        wanted = jax.grad(lambda x: jnp.sum(jax.vmap(scanned, axis_name="i")(x)))(ROWS)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_a_sum_over_two_named_axes() -> None:
    one = lambda r: jnp.sin(r * lax.psum(r * r, ("i", "j")))
    same_gradient(lambda x: jnp.sum(jax.vmap(jax.vmap(one, axis_name="j"), axis_name="i")(x)), ROWS)


@pytest.mark.parametrize("reduce", [lax.pmax, lax.pmin])
def test_an_extreme_over_rows(reduce: Any) -> None:
    f = jax.vmap(lambda r: r - reduce(r, "i"), axis_name="i")
    np.testing.assert_array_equal(cg.from_jax(f)(ROWS.astype(np.float32)), f(ROWS.astype(np.float32)))


def test_programs_for_devices_run_on_one() -> None:
    auto = jax.sharding.AxisType.Auto
    mesh, spec = jax.make_mesh((1,), ("d",), axis_types=(auto,)), jax.sharding.PartitionSpec("d")
    mapped = jax.shard_map(
        lambda x: jnp.sin(x) * lax.psum(jnp.sum(x), "d"), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    found = cg.grad(cg.from_jax(lambda x: jnp.sum(mapped(x))))(SHORT)
    np.testing.assert_allclose(found, np.cos(VECTOR) * VECTOR.sum() + np.sin(VECTOR).sum(), rtol=1e-6)


def _bcoo(values: Any) -> Any:
    rows, columns = np.nonzero(DENSE)
    return sparse.BCOO((values, jnp.asarray(np.stack([rows, columns], 1))), shape=DENSE.shape)


SPARSE = {
    "dense and back": lambda d: _bcoo(d).todense() @ VECTOR,
    "product": lambda d: _bcoo(d) @ VECTOR,
    "product of the transposed": lambda d: _bcoo(d).T @ VECTOR,
    "product with what is differentiated": lambda d: _bcoo(d) @ d[:3],
    "sum along an axis": lambda d: sparse.bcoo_reduce_sum(_bcoo(d), axes=(0,)).todense(),
    "rows of a vmap": lambda d: jax.vmap(lambda x: _bcoo(d) @ x)(jnp.outer(VECTOR, d[:3])),
    "a scan": lambda d: lax.scan(lambda x, _: (jnp.sin(_bcoo(d) @ x), None), d[:3], length=3)[0],
    "compressed rows": lambda d: sparse.BCSR.from_bcoo(_bcoo(d)) @ d[:3],
    "sparsify": lambda d: sparse.sparsify(lambda m, x: jnp.sin(m @ x))(_bcoo(d), d[:3]),
}


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_matrices(name: str) -> None:
    same_gradient(lambda d: jnp.sum(jnp.sin(SPARSE[name](d))), DENSE[np.nonzero(DENSE)])


def test_ragged_products() -> None:
    sizes = np.array([1, 2], dtype=np.int32)
    same_gradient(lambda x: jnp.sum(jnp.sin(lax.ragged_dot(x, jnp.ones((2, 3, 4)) * x[0, 0], sizes))), DENSE)


def _primitive(name: str, function: Any = None) -> Primitive:
    primitive = Primitive(name)
    primitive.def_abstract_eval(lambda x: x)
    if function is not None:
        primitive.def_impl(function)
        mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=False))
    return primitive


def test_a_primitive_of_a_users_own_is_read_by_its_rule() -> None:
    primitive = _primitive("sine_with_slope_seven", jnp.sin)
    ad.defjvp(primitive, lambda g, x: g * 7.0)
    same_gradient(lambda x: jnp.sum(primitive.bind(x)), VECTOR)
    np.testing.assert_array_equal(cg.grad(cg.from_jax(lambda x: jnp.sum(primitive.bind(x))))(SHORT), 7.0)


def test_a_primitive_of_a_users_own_without_a_rule_is_read_by_its_implementation() -> None:
    primitive = _primitive("sine_without_a_rule", jnp.sin)
    found = cg.grad(cg.from_jax(lambda x: jnp.sum(primitive.bind(x))))(SHORT)
    np.testing.assert_allclose(found, np.cos(VECTOR), rtol=1e-6)


def test_a_primitive_without_an_implementation_is_refused_by_name() -> None:
    primitive = _primitive("without_an_implementation")
    with pytest.raises(UnsupportedPrimitiveError, match="without_an_implementation"):
        cg.from_jax(lambda x: jnp.sum(primitive.bind(x)))(SHORT)


def test_a_function_with_a_rule_for_rows_is_itself_without_rows() -> None:
    function = jax.custom_batching.custom_vmap(jnp.sin)
    function.def_vmap(lambda size, batched, x: (jnp.cos(x), True))
    np.testing.assert_allclose(cg.grad(cg.from_jax(function))(np.float32(1.0)), np.cos(1.0), rtol=1e-6)
    same_gradient(lambda x: jnp.sum(jax.vmap(function)(x)), VECTOR)
