"""Functions of one example become functions of many at once: `vmap`, `vectorize`, and `custom_vmap` for own rules."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import optree

from ctrlgrad import tree
from ctrlgrad.advice import explains_calls
from ctrlgrad.batching import BatchedGraph, batch, batch_whole
from ctrlgrad.errors import CtrlgradError, ShapeError, TypeMismatchError, UserInputError
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.apply import apply, is_weak, shape_template, type_of, value_in
from ctrlgrad.frontend.array.manipulation import broadcast_to, joined_sizes, moveaxis
from ctrlgrad.frontend.array.promote import axis_of, dims, operand, rank_of, reshaped, shape_of, times
from ctrlgrad.frontend.checks import argument_paths, check_function, check_leaves, is_array, same_structure
from ctrlgrad.frontend.functions import ufunc
from ctrlgrad.frontend.loops import map as map_rows
from ctrlgrad.frontend.rules import LaterRows, Results, around, bound_to, record_call, trace_rule, within
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import Mapped, is_mapped, recorder
from ctrlgrad.frontend.tracer import Leaf, Traced, in_trace
from ctrlgrad.function import Function
from ctrlgrad.gradients.calls import expanded, rows_call
from ctrlgrad.gradients.later import settled
from ctrlgrad.ir import Builder, TensorType, Type, Value, close
from ctrlgrad.ir.rules import Answer, Positions
from ctrlgrad.ops.term import Term, constant, emit, ensure_sizes, transpose
from ctrlgrad.passes import inline_calls, simplify
from ctrlgrad.records import record
from ctrlgrad.signature import Static, StaticArguments, python_values_static
from ctrlgrad.source import Source, here
from ctrlgrad.transforms.custom_calls import CustomCall, RuleSetters, by_position, without_a_rule, without_rule
from ctrlgrad.transforms.tracing import Transformed
from ctrlgrad.tree import NAMESPACE

Axis = int | None
_SIZES_DIFFER = "vmap: the mapped axes have different sizes"
_ONE_SIZE = "in_axes=None for an argument that is the same for all rows: in_axes=(0, None)"


@explains_calls
def vmap(
    fn: Callable[..., Any],
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Hashable | None = None,
    axis_size: int | None = None,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
) -> Function:
    """A function that maps `fn` over an axis of its arguments, all rows at once; as `jax.vmap`.

    Loops and branches on values that differ from row to row are allowed: a loop runs until every row is done, and
    rows that are done, or take another branch, neither change nor disturb results and derivatives.

    Args:
        fn: takes arrays without the mapped axis, returns a pytree of arrays without it.
        in_axes: an int, None (the argument is the same for all rows), or a tuple or list with an entry for each
            positional argument; an entry may be a pytree that is a prefix of its argument. Negative axes
            count from the end. Keyword arguments are mapped over axis 0.
        out_axes: where the mapped axis stands in each result: an int, or a pytree that is a prefix of the result.
            None for a result that is the same for all rows. A result that does not depend on a mapped
            argument is repeated.
        axis_name: what collectives inside `fn` call the mapped axis: `ctrlgrad.lax.psum(x, axis_name)` is the sum over
            all rows. Loops and branches that hold one need a condition that is the same for all rows.
        axis_size: the number of rows, for a function that maps none of its arguments.
        static_argnums, static_argnames: arguments that reach `fn` as they are, as for `ctrlgrad.function`. Python
            integers and booleans whose entry in in_axes is None do so too.

    Raises (when called):
        UserInputError: in_axes or out_axes does not fit the arguments or the result, or nothing is mapped.
        ShapeError: an axis does not exist, or the mapped axes have different sizes.
        TypeMismatchError: a result is not an array; a result with out_axes None differs from row to row; a
            TensorArray is mapped or returned; a slice's bounds differ from row to row.

    >>> halvings = lambda x: cg.while_loop(lambda c: c[1] > 1.0, lambda c: (c[0] + 1, c[1] / 2), (0, x))[0]
    >>> cg.vmap(halvings)(np.array([1.0, 10.0, 3.0]))
    array([0, 4, 2])
    >>> cg.vmap(lambda x: x / cg.lax.psum(x, "rows"), axis_name="rows")(np.array([1.0, 3.0]))
    array([0.25, 0.75])
    >>> cg.vmap(lambda a, b: a @ b, in_axes=(0, None))(np.ones((2, 3)), np.arange(3.0))
    array([3., 3.])
    """

    if not isinstance(in_axes, int | tuple | list | None):
        raise UserInputError(
            "vmap: in_axes is no axis",
            expected="an integer, None, or a tuple with an entry for each positional argument",
            got=repr(in_axes),
            hint="in_axes=({...},) for one argument that is a dict",
        )
    static = StaticArguments("vmap", fn, static_argnums, static_argnames)

    def mark(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = static.mark(args, kwargs)
        if in_axes is None or (isinstance(in_axes, tuple | list) and len(in_axes) == len(args)):
            axes = in_axes or [None] * len(args)
            args = tuple(python_values_static(x) if axis is None else x for x, axis in zip(args, axes, strict=True))
        return args, kwargs

    def mapped(*args: Any, **kwargs: Any) -> Any:
        source = here()
        try:
            return _vmap(fn, in_axes, out_axes, axis_name, axis_size, *mark(args, kwargs), source)
        except CtrlgradError as error:
            if error.source is None:
                error.source = source
            raise

    return Transformed(mapped, fn, "vmap", mark)


def _first_row(builder: Builder, value: Value) -> Value:
    return emit("getitem", Term(builder, value), key=(0, *[slice(None)] * (value.tensor.rank - 1))).value


@record
class _Argument:
    """One leaf of the arguments."""

    value: Any
    type: Type
    axis: Axis
    path: str

    @property
    def size(self) -> int | None:
        """The size of the mapped axis, None where it is not known."""
        assert isinstance(self.type, TensorType) and self.axis is not None
        return self.type.shape[self.axis]

    @property
    def inner(self) -> Type:
        """The type of one row."""
        if self.axis is None:
            return self.type
        assert isinstance(self.type, TensorType)
        shape = self.type.shape
        return TensorType(self.type.dtype, shape[: self.axis] + shape[self.axis + 1 :])


def _vmap(
    fn: Callable[..., Any],
    in_axes: Any,
    out_axes: Any,
    axis_name: Hashable | None,
    axis_size: int | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    source: Source | None,
) -> Any:
    flat, treedef = tree.flatten((args, kwargs))
    axes = _in_axes(in_axes, args, kwargs, source)
    paths = argument_paths(fn, treedef)
    # A leaf that is no array reaches the function as it is, unless it is to be mapped.
    used = [i for i, x in enumerate(flat) if not isinstance(x, Static) and (axes[i] is not None or is_array(x))]
    leaves = [flat[i] for i in used]
    check_leaves("vmap: an argument", leaves)
    arguments = _arguments(leaves, [paths[i] for i in used], [axes[i] for i in used], source)
    # The number of each row: what there is to map where nothing else is.
    arguments += [] if axis_size is None else [_Argument(np.arange(axis_size), _numbers(axis_size), 0, "axis_size")]
    mapped = [position for position, a in enumerate(arguments) if a.axis is not None]
    size = _size([arguments[i] for i in mapped], source)

    outer = recorder()
    axes_around, rows_name = around(), None
    if axis_name is not None:
        first = arguments[mapped[0]]
        bound = bound_to(axis_name, size or Tensor(outer, value_in(outer, first.value)).shape[first.axis or 0])
        axes_around, rows_name = (*axes_around, bound), bound.axis

    def call(inputs: list[Tensor]) -> Any:
        given = dict(zip(used, inputs, strict=False))
        values = [given[i] if i in given else x.value if isinstance(x, Static) else x for i, x in enumerate(flat)]
        inner_args, inner_kwargs = tree.unflatten(treedef, values)
        return fn(*inner_args, **inner_kwargs)

    entry = [Leaf(a.inner, a.axis is None and is_weak(a.value)) for a in arguments]
    with within(axes_around):
        traced = Traced("rows_of", call, entry, what="vmap: the function's result", builder=Mapped(outer, "rows_of"))
    result_treedef = traced.treedef
    closed = close([traced.finish()])
    captures = len(closed.captures)
    row = settled(simplify(closed.regions[0]))
    batched = batch(row, [captures + i for i in mapped], size, rows_name)
    outer.source = source
    moved = _rows_first(outer, arguments, size)
    operands = [*closed.captures, *moved]
    if batched.has_buffers and is_mapped(outer):
        # An outer vmap may need the rows batched anew.
        values = tuple(rows_call(outer, row, [captures + i for i in mapped], operands, batch_whole, rows_name))
        given = _flat_axes("out_axes", out_axes, tree.unflatten(result_treedef, values), source)
        shared = [axis is None and not rows for axis, rows in zip(given, batched.mapped, strict=True)]
        values = tuple(_first_row(outer, v) if once else v for v, once in zip(values, shared, strict=True))
        batched = BatchedGraph(batched.graph, tuple(not once for once in shared))
    else:
        graph = inline_calls(batched.graph, ("rows",))
        # An outer vmap batches a function before it is differentiated.
        values = outer.inline(graph if is_mapped(outer) else expanded(graph), operands)
    rows = Tensor(outer, moved[mapped[0]]).shape[0]
    tensors = [Tensor(outer, v) for v in values]
    axes = _flat_axes("out_axes", out_axes, tree.unflatten(result_treedef, tensors), source)
    return tree.unflatten(result_treedef, _placed(tensors, batched, axes, rows, tree.paths(result_treedef), source))


def _numbers(size: int) -> TensorType:
    return TensorType(np.dtype(np.int64), (size,))


def _in_axes(in_axes: Any, args: tuple[Any, ...], kwargs: dict[str, Any], source: Source | None) -> list[Axis]:
    if isinstance(in_axes, tuple | list):
        if len(in_axes) != len(args):
            raise UserInputError(
                "vmap: in_axes does not fit the call",
                source=source,
                expected=f"one entry for each of the {len(args)} positional arguments",
                got=f"{len(in_axes)} entries: {in_axes!r}",
                hint="None for an argument that is the same for all rows; keyword arguments have no entry",
            )
        given = []
        for prefix, x in zip(in_axes, args, strict=True):
            given += _flat_axes("in_axes", prefix, x, source)
    else:
        given = _flat_axes("in_axes", in_axes, args, source)
    return [*given, *(0 for _ in tree.leaves(kwargs))]


def _is_axis(x: Any) -> bool:
    return x is None or isinstance(x, int)


def _flat_axes(label: str, prefix: Any, full: Any, source: Source | None) -> list[Axis]:
    """An axis for each leaf of `full`, from a pytree of axes that is a prefix of it."""
    axes, treedef = optree.tree_flatten(prefix, is_leaf=_is_axis, none_is_leaf=True, namespace=NAMESPACE)
    wrong = [axis for axis in axes if not _is_axis(axis) or isinstance(axis, bool)]
    if wrong:
        raise UserInputError(
            f"vmap: {label} holds something that is no axis",
            source=source,
            expected="ints and None, in a pytree that is a prefix of what they belong to",
            got=repr(wrong[0]),
            hint=f"{label}=0, or {label}=(0, None) for two",
        )
    try:
        parts = treedef.flatten_up_to(full)
    except (ValueError, TypeError) as error:
        what = "argument" if label == "in_axes" else "result"
        raise UserInputError(
            f"vmap: {label} does not fit the {what}",
            source=source,
            expected=f"an int, None, or a pytree that is a prefix of the {what}",
            got=f"{prefix!r}: {error}",
            hint=f"give {label} as one int, or in the containers of the {what}",
        ) from error
    return [axis for axis, part in zip(axes, parts, strict=True) for _ in tree.leaves(part)]


def _arguments(
    leaves: Sequence[Any], paths: Sequence[str], axes: Sequence[Axis], source: Source | None
) -> list[_Argument]:
    found = []
    for x, axis, path in zip(leaves, axes, paths, strict=True):
        t = type_of(x)
        if axis is not None:
            if not isinstance(t, TensorType):
                raise TypeMismatchError(
                    "vmap: a TensorArray has no axis to map over",
                    source=source,
                    expected="an array of rank 1 or more",
                    got=f"{path}: {t}",
                    hint="pass array.stack() and unstack it inside, or in_axes None for it",
                )
            axis = _counted_from_the_front("in_axes", axis, t.rank, f"{path}: {t}", source)
        found.append(_Argument(x, t, axis, path))
    return found


def _counted_from_the_front(label: str, axis: int, rank: int, what: str, source: Source | None) -> int:
    if not -rank <= axis < rank:
        raise ShapeError(
            f"vmap: {label} {axis} is out of range",
            source=source,
            expected=f"-{rank} <= axis < {rank}" if rank else "None: a scalar has no axis",
            got=what,
            hint=f"{label} may hold an entry for each array on its own, None for one that is the same for all rows",
        )
    return axis % rank


def _size(mapped: Sequence[_Argument], source: Source | None) -> int | None:
    """The number of rows, None where no argument tells it."""
    if not mapped:
        raise UserInputError(
            "vmap: no argument is mapped",
            source=source,
            expected="an argument with an axis in in_axes, or axis_size=",
            got="in_axes None for all arguments, or no arguments",
            hint="leave in_axes out to map over axis 0 of every argument",
        )
    known = {a.size for a in mapped if a.size is not None}
    if len(known) > 1:
        raise ShapeError(
            _SIZES_DIFFER,
            source=source,
            expected="one size for all mapped arguments",
            got="\n".join(f"{a.path}: {a.type}, axis {a.axis}" for a in mapped),
            hint=_ONE_SIZE,
        )
    # No rows at all: left to run time, as argmax over no elements is refused when a graph is built.
    return (known.pop() or None) if known else None


def _rows_first(builder: Builder, arguments: Sequence[_Argument], size: int | None) -> list[Value]:
    """The arguments with their mapped axis in front; sizes that are not known yet are compared when it runs."""
    moved: list[Value] = []
    rows: Term | None = None
    for a in arguments:
        if a.axis is None:
            moved.append(value_in(builder, a.value))
            continue
        x = Term(builder, value_in(builder, a.value))
        if a.axis:
            x = transpose(x, (a.axis, *(axis for axis in range(x.rank) if axis != a.axis)))
        if size is None:
            first = x.dim(0)
            if isinstance(first, Term) and rows is None:
                rows = first
            else:
                rows = rows or constant(builder, first, np.int64)
                x = ensure_sizes(x, {0: rows}, _SIZES_DIFFER, _ONE_SIZE)
                x = emit("forget_sizes", x, axes=(0,)) if x.tensor.shape[0] is not None else x
        else:
            x = ensure_sizes(x, {0: size}, _SIZES_DIFFER, _ONE_SIZE)
        moved.append(x.value)
    return moved


def _placed(
    tensors: Sequence[Tensor],
    batched: BatchedGraph,
    axes: Sequence[Axis],
    rows: Any,
    paths: Sequence[str],
    source: Source | None,
) -> list[Any]:
    """The results with their rows where out_axes says."""
    placed = []
    for x, has_rows, axis, path in zip(tensors, batched.mapped, axes, paths, strict=True):
        if axis is None:
            if has_rows:
                raise TypeMismatchError(
                    "vmap: a result with out_axes None differs from row to row",
                    source=source,
                    expected="a result that depends on no mapped argument",
                    got=f"result{path}: {x.type}",
                    hint="give it an axis in out_axes",
                )
            placed.append(x)
            continue
        if not has_rows:
            if not isinstance(x.type, TensorType):
                raise TypeMismatchError(
                    "vmap: the function returns a TensorArray",
                    source=source,
                    expected="arrays",
                    got=f"result{path}: {x.type}",
                    hint="return array.stack()",
                )
            shape, operands = shape_template([rows, *x.shape])
            x = apply("broadcast_to", [x, *operands], {"shape": shape})
        axis = _counted_from_the_front("out_axes", axis, x.ndim, f"result{path}: {x.type}, its rows in front", source)
        if axis:
            order = [*range(1, x.ndim)]
            order.insert(axis, 0)
            x = apply("transpose", [x], {"axes": tuple(order)})
        placed.append(x)
    return placed


_NAME = r"[A-Za-z_]\w*|\d+"
_GROUP = rf"\((?:(?:{_NAME})(?:,(?:{_NAME}))*)?\)"
_SIGNATURE = re.compile(rf"{_GROUP}(?:,{_GROUP})*->{_GROUP}(?:,{_GROUP})*")

Core = tuple[str, ...]


def vectorize(
    pyfunc: Callable[..., Any], *, excluded: Collection[int | str] = frozenset(), signature: str | None = None
) -> Callable[..., Any]:
    """A function of arrays that calls `pyfunc` for all of their elements at once; as `jax.numpy.vectorize`.

    Args:
        pyfunc: takes and returns numbers, or arrays of the ranks that the signature says.
        excluded: positions and names of arguments that reach it as they are.
        signature: the axes of each argument and each result of one call, such as "(m,n),(n)->(m)"; numbers by
            default. The axes before them broadcast.

    Raises (when called):
        UserInputError: the signature cannot be read, or has another number of arguments.
        ShapeError: an argument has too few axes, or sizes of one name differ.

    >>> clipped = cnp.vectorize(lambda x, low: cnp.where(x < low, low, x))
    >>> clipped([1.0, 2.0, 3.0], 2.0)
    array([2., 2., 3.])
    >>> cnp.vectorize(cnp.dot, signature="(n),(n)->()")(cnp.ones((4, 3)), cnp.ones(3))
    array([3., 3., 3., 3.])
    """
    cores = None if signature is None else _parse(signature)

    @functools.wraps(pyfunc)
    def vectorized(*args: Any, **kwargs: Any) -> Any:
        kept = {place: x for place, x in enumerate(args) if place in excluded}
        names = [name for name in kwargs if name not in excluded]
        given = [x for place, x in enumerate(args) if place not in kept] + [kwargs[name] for name in names]
        arrays = [operand("vectorize", x) for x in given]
        wanted = [()] * len(arrays) if cores is None else cores[0]
        if len(wanted) != len(arrays):
            raise UserInputError(
                "vectorize: the signature has another number of arguments",
                expected=f"{len(wanted)} arrays, by {signature!r}",
                got=str(len(arrays)),
                hint="name arguments that are no arrays in excluded={...}",
            )

        def call(*rows: Any) -> Any:
            rows = tuple(rows)
            positional: list[Any] = list(rows[: len(rows) - len(names)])
            for place, x in sorted(kept.items()):
                positional.insert(place, x)
            named = {**kwargs, **dict(zip(names, rows[len(rows) - len(names) :], strict=True))}
            result = pyfunc(*positional, **named)
            wanted = None if cores is None else cores[1]
            results = list(result) if isinstance(result, tuple | list) else [result]
            ranks = [0] * len(results) if wanted is None else [len(core) for core in wanted]
            found = [rank_of(operand("vectorize", x)) for x in results]
            if found != ranks:
                raise ShapeError(
                    "vectorize: the results of one call have other ranks",
                    expected=f"ranks {ranks}" + ("" if signature is None else f", by {signature!r}"),
                    got=f"ranks {found}",
                    hint="say which axes a call takes and returns: signature='(n)->(n)'",
                )
            return result

        return _over_rows(call, arrays, wanted)

    return vectorized


def _parse(signature: str) -> tuple[list[Core], list[Core]]:
    text = signature.replace(" ", "")
    if not _SIGNATURE.fullmatch(text):
        raise UserInputError(
            "vectorize: the signature cannot be read", expected='such as "(m,n),(n)->(m)"', got=repr(signature)
        )
    inputs, outputs = (
        [tuple(name for name in group[1:-1].split(",") if name) for group in re.findall(_GROUP, side)]
        for side in text.split("->")
    )
    return inputs, outputs


def _over_rows(call: Callable[..., Any], arrays: Sequence[Any], cores: Sequence[Core]) -> Any:
    """The call on all rows of the axes before the cores; what has no such axes is the same for all rows."""
    sizes: dict[str, Any] = {}
    for x, core in zip(arrays, cores, strict=True):
        if rank_of(x) < len(core):
            raise ShapeError(
                "vectorize: an argument has too few axes",
                expected=f"rank {len(core)} or more",
                got=f"rank {rank_of(x)}",
            )
        for name, size in zip(core, shape_of(x)[rank_of(x) - len(core) :], strict=True):
            known = sizes.setdefault(name, size)
            if None not in (known, size) and known != size:
                raise ShapeError(f"vectorize: sizes of {name} differ", expected=str(known), got=str(size))
    leading = [rank_of(x) - len(core) for x, core in zip(arrays, cores, strict=True)]
    if not any(leading):
        return call(*arrays)
    # Arrays of the leading axes alone: their sizes are all that counts.
    outer = joined_sizes("vectorize", [_outer(x, rank) for x, rank in zip(arrays, leading, strict=True)])
    rows = []
    for x, rank in zip(arrays, leading, strict=True):
        own = dims(x)[rank:]
        rows.append(reshaped(broadcast_to(x, (*outer, *own)), [times(outer), *own]) if rank else x)
    results = vmap(call, in_axes=tuple(0 if rank else None for rank in leading))(*rows)
    whole = [reshaped(x, [*outer, *dims(x)[1:]]) for x in (results if isinstance(results, tuple | list) else [results])]
    return tuple(whole) if isinstance(results, tuple | list) else whole[0]


def _outer(x: Any, rank: int) -> Any:
    """The first row of each core."""
    return x[(..., *[0] * (rank_of(x) - rank))] if rank_of(x) > rank else x


def apply_along_axis(func1d: Callable[..., Any], axis: int, arr: Any, *args: Any, **kwargs: Any) -> Any:
    """`func1d` of each vector along an axis, all of them at once; as `jax.numpy.apply_along_axis`.

    The axes of its result stand in place of that axis.

    >>> cnp.apply_along_axis(cnp.sort, 1, [[3, 1, 2], [9, 7, 8]])
    array([[1, 2, 3],
           [7, 8, 9]])
    """
    arr = operand("apply_along_axis", arr)
    place = axis_of("apply_along_axis", axis, rank_of(arr))
    if rank_of(arr) == 1:
        return func1d(arr, *args, **kwargs)
    last = moveaxis(arr, place, -1)
    outer = dims(last)[:-1]
    rows = vmap(lambda row: func1d(row, *args, **kwargs))(reshaped(last, [times(outer), dims(last)[-1]]))
    found = reshaped(rows, [*outer, *dims(rows)[1:]])
    own = rank_of(found) - len(outer)
    return moveaxis(found, tuple(range(len(outer), rank_of(found))), tuple(range(place, place + own)))


def frompyfunc(func: Callable[..., Any], /, nin: int, nout: int, *, identity: Any = None) -> ufunc:
    """A `ufunc` of a function of numbers; as `jax.numpy.frompyfunc`.

    >>> cnp.frompyfunc(lambda x, y: x * 10 + y, 2, 1).reduce([1, 2, 3])
    array(123)
    """
    return ufunc(vectorize(func), nin, nout, name=getattr(func, "__name__", None), identity=identity)


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

    @explains_calls
    def __init__(self, fun: Callable[..., Any]) -> None:
        check_function("custom_vmap", fun)
        functools.update_wrapper(self, fun)
        self.fn = fun
        self.rule: Callable[..., Any] | None = None

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


@explains_calls
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
