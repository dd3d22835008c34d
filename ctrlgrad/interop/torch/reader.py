"""Reading a program that `torch.export` has captured: the nodes of its graph, one by one, by the table.

Values are traced tensors, arrays where all that they depend on is known, and Python numbers; sizes that the program
calls dynamic are numbers of the trace. Errors and recorded ops name the user's line that made the node.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree

from ctrlgrad.errors import locate
from ctrlgrad.frontend.apply import cast
from ctrlgrad.frontend.branches import cond
from ctrlgrad.frontend.loops import associative_scan, scan, while_loop
from ctrlgrad.frontend.loops import map as map_rows
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.interop.torch.entries import arguments, find, name_of, promoted, unsupported
from ctrlgrad.interop.torch.tensors import DTYPES, to_array
from ctrlgrad.source import Source, is_own, read_from

_TORCH = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "")
_LINE = re.compile(r'File "(.+)", line (\d+), in (.+)')


def decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions of the operators that the table does not have."""
    table: dict[Any, Callable[..., Any]] = torch.export.default_decompositions()
    return {op: fn for op, fn in table.items() if find(op) is None}


def source_of(node: Node) -> Source | None:
    """The line of the user's that made a node."""
    for file, line, function in reversed(_LINE.findall(node.meta.get("stack_trace") or "")):
        if not file.startswith(_TORCH) and not is_own(file):
            return Source(file, int(line), function)
    return None


def read(graph: GraphModule, *inputs: Any) -> list[Any]:
    """The results of a graph for these inputs."""
    values: dict[Node, Any] = {}
    given = iter(inputs)
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(given)
        elif node.op == "get_attr":
            values[node] = _attribute(graph, node.target)
        elif node.op == "output":
            found = torch.fx.node.map_arg(node.args[0], lambda n: values[n])
            return list(found) if isinstance(found, tuple | list) else [found]
        else:
            args = torch.fx.node.map_arg(node.args, lambda n: values[n])
            kwargs = torch.fx.node.map_arg(node.kwargs, lambda n: values[n])
            values[node] = _node(node, args, kwargs)
    raise AssertionError("a graph of torch.fx ends with its output")


def _attribute(graph: GraphModule, path: str) -> Any:
    found: Any = graph
    for name in path.split("."):
        found = getattr(found, name)
    return to_array(found) if isinstance(found, torch.Tensor) else found


def _node(node: Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    source = source_of(node)
    target: Any = node.target
    with read_from(source):
        try:
            if isinstance(target, torch._ops.HigherOrderOperator):
                higher = HIGHER.get(target.name())
                if higher is None:
                    raise unsupported(target.name(), source)
                return higher(*args, **kwargs)
            if not isinstance(target, torch._ops.OpOverload):
                return target(*args, **kwargs)
            entry = find(target)
            if entry is None:
                raise unsupported(name_of(target), source)
            stated = node.meta.get("val")
            first = stated[0] if isinstance(stated, tuple | list) and stated else stated
            dtype = DTYPES.get(first.dtype) if isinstance(first, torch.Tensor) else None
            given, named = arguments(args, kwargs)
            return _fitted(stated, entry(*promoted(target, given, dtype), **named))
        except Exception as error:
            locate(error, f"PyTorch's {target}", source)
            raise


def _fitted(stated: Any, found: Any) -> Any:
    """Results with the dtypes that PyTorch states."""
    if isinstance(stated, tuple | list):
        return [_fitted(x, y) for x, y in zip(stated, found, strict=False)]
    return cast(found, DTYPES[stated.dtype]) if isinstance(stated, torch.Tensor) else found


# Operators that own graphs, or functions.


def _called(fn: Any, *operands: Any) -> list[Any]:
    if isinstance(fn, GraphModule):
        return read(fn, *operands)
    found = fn(*operands)
    return list(found) if isinstance(found, tuple | list) else [found]


def _cond(predicate: Any, when_true: Any, when_false: Any, operands: Sequence[Any] = ()) -> Any:
    if not isinstance(predicate, Tensor):
        return _called(when_true if predicate else when_false, *operands)
    predicate = predicate.reshape(()) if predicate.ndim else predicate
    return cond(predicate, lambda *xs: _called(when_true, *xs), lambda *xs: _called(when_false, *xs), *operands)


def _while_loop(goes_on: Any, body: Any, carried: Sequence[Any], additional: Sequence[Any] = ()) -> Any:
    carry = list(carried)

    def test(c: list[Any]) -> Any:
        found = _called(goes_on, *c, *additional)[0]
        return found.reshape(()) if getattr(found, "ndim", 0) else found

    return while_loop(test, lambda c: _called(body, *c, *additional), carry)


def _scan(fn: Any, init: Sequence[Any], xs: Sequence[Any], additional: Sequence[Any] = ()) -> Any:
    init = list(init)

    def step(carry: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
        found = _called(fn, *carry, *row, *additional)
        return found[: len(init)], found[len(init) :]

    last, collected = scan(step, init, list(xs))
    return [*last, *collected]


HIGHER: dict[str, Callable[..., Any]] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "scan": _scan,
    "associative_scan": lambda fn, xs, additional=(): associative_scan(
        lambda a, b: _called(fn, *a, *b, *additional), list(xs)
    ),
    "map_impl": lambda fn, xs, operands=(): map_rows(lambda row: _called(fn, *row, *operands), list(xs)),
    "wrap_with_set_grad_enabled": lambda enabled, fn, *args: _called(fn, *args),
}


def inputs_of(program: Any, params: Mapping[str, Any], args: Any) -> list[Any]:
    """The inputs of a captured program's graph: its parameters, buffers and constants, and the arguments."""
    specs = program.graph_signature.input_specs
    given = iter(_pytree.tree_leaves(args))
    found = []
    for spec in specs:
        kind = spec.kind.name
        if kind in ("PARAMETER", "BUFFER"):
            name = spec.target
            found.append(params[name] if name in params else to_array(program.state_dict[name]))
        elif kind == "CONSTANT_TENSOR":
            found.append(to_array(program.constants[spec.target]))
        elif kind == "USER_INPUT":
            found.append(next(given))
        else:
            raise unsupported(f"an input of the kind {kind}")
    return found


__all__ = ["HIGHER", "decompositions", "inputs_of", "read", "source_of"]
