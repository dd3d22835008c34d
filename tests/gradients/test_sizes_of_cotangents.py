"""A cotangent is of the sizes of what it belongs to: where a rule does not see to it, the run refuses it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.reference import run_graph
from ctrlgrad.errors import ShapeError
from ctrlgrad.gradients.table import REVERSE, ReverseRule
from ctrlgrad.ir import INDEX, Builder, TensorType
from ctrlgrad.ops.term import Term

VECTOR = cg.TensorSpec((None,), "float64")


@pytest.mark.parametrize("engine", ["reference", "native"])
def test_the_cotangent_of_an_input_is_of_its_size(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule for `abs` is wrong here: it gives three numbers, however many there are."""

    def three(ct: Term, out: Term, x: Term) -> Term:
        return Term(ct.builder, ct.builder.constant(np.ones(3)))

    monkeypatch.setitem(REVERSE, "abs", ReverseRule((three,)))
    slope = cg.function(cg.grad(lambda x: cnp.sum(np.abs(x))), signature=[VECTOR], engine=engine)
    np.testing.assert_allclose(slope(np.arange(3.0)), np.ones(3))
    with pytest.raises(ShapeError, match="a cotangent is not of the shape of what it belongs to"):
        slope(np.arange(4.0))


@pytest.mark.parametrize(
    ("given", "right"), [((3, 3, 3), True), ((3, 3, 4), False), ((4, 3, 3), False), ((3, 4, 3), False)]
)
def test_the_cotangent_of_what_must_have_sizes_is_compared_with_both(given: tuple[int, int, int], right: bool) -> None:
    """With the sizes that were required, and with those that the operand has."""
    builder = Builder()
    vector = TensorType(np.dtype("float64"), (None,))
    ct, x, n = (Term(builder, builder.input(t)) for t in (vector, vector, TensorType(INDEX.dtype, ())))
    (rule,) = REVERSE["ensure_sizes"].pullbacks
    attrs: dict[str, Any] = {"shape": (None,), "axes": (0,), "problem": "the sizes differ", "hint": "look at them"}
    graph = builder.finish([rule(ct, x, x, n, **attrs).value])
    required, own, of_cotangent = given
    run = lambda: run_graph(graph, [np.ones(of_cotangent), np.ones(own), np.int64(required)])
    if right:
        assert run()[0].shape == (3,)
    else:
        with pytest.raises(ShapeError, match="the sizes differ"):
            run()


def test_joined_arrays_are_compared_with_the_first_too() -> None:
    """Its size may be the unknown one."""
    for fn in (lambda x: cnp.sum(cnp.stack([x, np.ones(3)])), lambda x: cnp.sum(cnp.stack([np.ones(3), x]))):
        slope = cg.function(cg.grad(fn), signature=[VECTOR])
        np.testing.assert_allclose(slope(np.ones(3)), np.ones(3))
        with pytest.raises(ShapeError, match="concat: sizes differ") as caught:
            slope(np.ones(4))
        assert "test_sizes_of_cotangents.py" in str(caught.value.source)
