"""Search for host integers that go by whole steps: sums and multiples of integers that do, from iteration to
iteration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ctrlgrad.engines.cuda.prepared.operands import INT64, Affine
from ctrlgrad.ir import Graph, Node, TensorType, Value, attributes


def stepped(node: Node, operands: Sequence[object]) -> Affine | None:
    """Result of an op on integers that go by whole steps, where it goes by whole steps too; else None."""
    known = [x for x in operands if isinstance(x, Affine)]
    if len(known) != len(operands) or node.op.name not in _OPS:
        return None
    return _OPS[node.op.name](node, *known)


def stepping(graph: Graph, inputs: Mapping[Value, Affine]) -> dict[Value, Affine]:
    """The values of a region that go by steps where these inputs do."""
    found = dict(inputs)
    for node in graph.nodes:
        constant = attributes.Constant.find(node)
        if constant is not None:
            its = Affine(int(constant.value)) if is_integer(node.result) else None
        else:
            its = stepped(node, [found.get(v) for v in node.operands])
        if its is not None:
            found[node.result] = its
    return found


def is_integer(value: Value) -> bool:
    """Return true if a value is an integer as the host counts (a scalar int64)."""
    return isinstance(value.type, TensorType) and value.type.rank == 0 and value.type.dtype == INT64


def _product(node: Node, a: Affine, b: Affine) -> Affine | None:
    for x, y in ((a, b), (b, a)):
        if not y.is_moving:
            return x.times(y.constant)
    return None


_OPS: dict[str, Callable[..., Affine | None]] = {
    "add": lambda node, a, b: a.plus(b),
    "subtract": lambda node, a, b: a.plus(b, -1),
    "multiply": _product,
    "negative": lambda node, a: a.times(-1),
    "cast": lambda node, a: a if is_integer(node.result) else None,
}
