"""`custom_vmap`: functions that say themselves how they are batched."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ctrlgrad import tree
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.apply import type_of
from ctrlgrad.frontend.checks import check_function, check_leaves, same_structure
from ctrlgrad.frontend.loops import map as map_rows
from ctrlgrad.frontend.rules import LaterRows, Results, record_call, trace_rule
from ctrlgrad.frontend.tracer import in_trace
from ctrlgrad.ir import TensorType
from ctrlgrad.ir.rules import Answer, Positions
from ctrlgrad.source import Source, here
from ctrlgrad.transforms.custom_calls import CustomCall, RuleSetters, by_position, without_a_rule, without_rule


class custom_vmap(RuleSetters):
    """A function that says itself how `vmap` maps it; as `jax.custom_batching.custom_vmap`.

    `def_vmap(rule)`: `rule(axis_size, in_batched, *args)` takes the arguments, of which those have rows along axis 0
    that `in_batched`, a list of pytrees of bool like the arguments, names. It returns the result and a pytree of bool
    like it: which parts have rows. `axis_size` is the number of rows, an int, or a traced scalar if only a run tells.

    Derivatives follow: of the function where it is not mapped, of the rule where it is, whichever of `vmap` and `grad`
    comes first. The backward pass computes the function, or the rule, again.

    >>> @cg.custom_vmap
    ... def dot(a, b):
    ...     return a @ b
    >>> @dot.def_vmap
    ... def rule(axis_size, in_batched, a, b):
    ...     return (a * b).sum(-1), any(in_batched)
    >>> cg.vmap(dot, in_axes=(0, None))(np.ones((2, 3)), np.arange(3.0))
    array([3., 3.])
    """

    def __init__(self, fun: Callable[..., Any]) -> None:
        check_function("custom_vmap", fun)
        functools.update_wrapper(self, fun)
        self.fn = fun
        self.rule: Callable[..., Any] | None = None

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def def_vmap(self, vmap_rule: Callable[..., Any]) -> Callable[..., Any]:
        """Give the rule; returns it."""
        self.rule = vmap_rule
        return vmap_rule

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.rule is None:
            raise without_a_rule("custom_vmap", self.fn, "def_vmap(rule)")
        args = by_position(self.fn, args, kwargs, "custom_vmap")
        if trace.current() is None:
            return without_rule(self.fn, args)
        call = _RowsRule(self.fn, self.rule, args, here())
        return in_trace(lambda: record_call(LaterRows, self, call.label(call.rule), call))


class _RowsRule(CustomCall):
    """A call of a function with a rule for rows."""

    def __init__(
        self, fn: Callable[..., Any], rule: Callable[..., Any], args: tuple[Any, ...], source: Source | None
    ) -> None:
        super().__init__("custom_vmap", fn, args, (), source)
        self.rule = rule

    @property
    def roots(self) -> tuple[Any, ...]:
        return (self.rule,)

    def rows(self, results: Results, size: int | None, mapped: Positions) -> Answer:
        """The function of the arguments, those at `mapped` with rows, to the results."""
        label, found = self.label(self.rule), list[int]()
        inputs = list(self.inputs)
        for i in mapped:
            t = inputs[i].type
            assert isinstance(t, TensorType)
            inputs[i] = replace(inputs[i], type=TensorType(t.dtype, (size, *t.shape)))

        def rule(values: list[Any]) -> Any:
            count = values[mapped[0]].shape[0] if size is None and mapped else size
            batched = self.differentiable([i in mapped for i in range(len(values))], lambda x: False)
            returned = self.rule(count, list(batched), *self.differentiable(values))
            result, has_rows = self.pair(returned, self.rule, "the rule", "(result, which parts of it have rows)")
            flags, like = tree.flatten(has_rows)
            leaves, treedef = tree.flatten(result)
            check_leaves(f"{label}: the rule's result", leaves)
            labels = ("the function's result", "the rule's result")
            same_structure(label, self.source, labels, (results.stand_ins(), results.treedef), (leaves, treedef))
            same_structure(label, self.source, ("the rule's result", "what has rows"), (leaves, treedef), (flags, like))
            found.extend(i for i, flag in enumerate(flags) if flag)
            for i, (x, path) in enumerate(zip(leaves, tree.paths(treedef), strict=True)):
                wanted = results.leaves[i].type
                if i in found and isinstance(wanted, TensorType):
                    wanted = TensorType(wanted.dtype, (size, *wanted.shape))
                if not wanted.accepts(type_of(x)):
                    raise TypeMismatchError(
                        f"{label}: the rule's result{path} does not fit the function's",
                        source=self.source,
                        expected=str(wanted),
                        got=str(type_of(x)),
                        hint="a part that has rows has them along axis 0; the rest is as the function's result is",
                    )
            return leaves

        graph = trace_rule("rows", rule, inputs).finish()
        return Answer(graph, mapped, tuple(found))


def sequential_vmap(f: Callable[..., Any]) -> custom_vmap:
    """A function that `vmap` maps by a loop, row by row; as `jax.custom_batching.sequential_vmap`.

    >>> cg.vmap(sequential_vmap(lambda x, y: x * y), in_axes=(0, None))(np.arange(3.0), 2.0)
    array([0., 2., 4.])
    """
    mapped = custom_vmap(f)

    @mapped.def_vmap
    def rule(axis_size: Any, in_batched: list[Any], *args: Any) -> Any:
        leaves, treedef = tree.flatten(args)
        flags = tree.leaves(in_batched)
        rows = [x for x, flag in zip(leaves, flags, strict=True) if flag]

        def one(given: list[Any]) -> Any:
            each = iter(given)
            return f(*tree.unflatten(treedef, [next(each) if b else x for x, b in zip(leaves, flags, strict=True)]))

        result = map_rows(one, rows)
        return result, tree.map(lambda _: True, result)

    return mapped
