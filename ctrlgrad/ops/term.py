"""Terms: values of one builder with operators, so that a derivative rule reads as mathematics.

A term's operations emit nodes into its builder. Numbers become constants of the term's dtype. Unlike the
user's tensors, terms do not promote: what is combined has equal dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import ShapeError, TypeMismatchError
from ctrlgrad.ir import Builder, TensorType, Type, Value, close
from ctrlgrad.ir.control import emit_branch
from ctrlgrad.ir.op import Trait, declare
from ctrlgrad.ir.types import Dim, RegionType, Shape, StackType


def _operators(op: str) -> tuple[Callable[[Term, Operand], Term], Callable[[Term, Operand], Term]]:
    """Methods of an operator and of its reflection."""
    return lambda self, other: emit(op, self, other), lambda self, other: emit(op, other, self)


class Term:
    """A value with operators; see the module's docstring."""

    def __init__(self, builder: Builder, value: Value) -> None:
        self.builder = builder
        self._value = value

    @property
    def value(self) -> Value:
        return self._value

    @property
    def type(self) -> Type:
        return self._value.type

    @property
    def tensor(self) -> TensorType:
        assert isinstance(self.type, TensorType)
        return self.type

    @property
    def dtype(self) -> np.dtype:
        return self.tensor.dtype

    @property
    def rank(self) -> int:
        return self.tensor.rank

    def dim(self, axis: int) -> int | Term:
        """The size of an axis: an int where it is known, else a scalar term."""
        known = self.tensor.shape[axis]
        return emit("dim", self, axis=axis % self.rank) if known is None else known

    @property
    def dims(self) -> list[int | Term]:
        return [self.dim(axis) for axis in range(self.rank)]

    def factor(self, op: str) -> Term:
        """A decomposition of matrices; of a forward value the one that the forward side has made, or makes for this."""
        return emit(op, self)

    def length(self) -> Term:
        """The number of slots of a stack."""
        return emit("stack_length", self)

    def __neg__(self) -> Term:
        return emit("negative", self)

    def __matmul__(self, other: Term) -> Term:
        return emit("matmul", self, other)

    __add__, __radd__ = _operators("add")
    __sub__, __rsub__ = _operators("subtract")
    __mul__, __rmul__ = _operators("multiply")
    __truediv__, __rtruediv__ = _operators("divide")
    __pow__, __gt__, __lt__, equals = (_operators(op)[0] for op in ("power", "greater", "less", "equal"))


Operand = Term | int | float | complex


def emit_all(op: str, *operands: Operand, attrs: Mapping[str, Any] = {}) -> tuple[Term, ...]:
    """Emit a node; numbers take the dtype of the first term."""
    first = next(x for x in operands if isinstance(x, Term))
    builder = first.builder
    dtype = first.dtype if isinstance(first.type, TensorType) else None
    values = [x.value if isinstance(x, Term) else builder.constant(x, dtype) for x in operands]
    return tuple(Term(builder, v) for v in builder.emit_all(op, values, attrs))


def emit(op: str, *operands: Operand, **attrs: Any) -> Term:
    """As `emit_all`, for an op with one result."""
    (result,) = emit_all(op, *operands, attrs=attrs)
    return result


def where(condition: Term, a: Operand, b: Operand) -> Term:
    like = a if isinstance(a, Term) else b
    assert isinstance(like, Term)
    a, b = (x if isinstance(x, Term) else constant(like.builder, x, like.dtype) for x in (a, b))
    return emit("where", condition, a, b)


def choose(builder: Builder, selector: Term, branches: Sequence[Callable[[Builder], Sequence[Term]]]) -> list[Term]:
    """A `cond` whose branches are written as functions; they may use any value of the graphs around them."""
    regions = []
    for number, branch in enumerate(branches):
        inner = Builder(builder, f"case_{number}")
        inner.source = builder.source
        regions.append(inner.finish([x.value for x in branch(inner)]))
    closed = close(regions)
    return [Term(builder, v) for v in emit_branch(builder, selector.value, closed)]


def constant(builder: Builder, x: Any, dtype: Any = None) -> Term:
    return Term(builder, builder.constant(x, dtype))


def sized(builder: Builder, dims: Sequence[int | Term]) -> tuple[tuple[int | None, ...], list[Term]]:
    """Split sizes into a shape template and the terms for its unknown dimensions."""
    return tuple(d if isinstance(d, int) else None for d in dims), [d for d in dims if isinstance(d, Term)]


def reshape(x: Term, dims: Sequence[int | Term]) -> Term:
    shape, unknown = sized(x.builder, dims)
    return x if shape == x.tensor.shape and not unknown else emit("reshape", x, *unknown, shape=shape)


def same_size(a: int | Term, b: int | Term) -> bool:
    """Return true if two sizes are known to be equal: the same number, or the same value."""
    return a == b if isinstance(a, int) or isinstance(b, int) else a.value is b.value


def ensure_sizes(
    x: Term,
    sizes: Mapping[int, int | Term],
    problem: str = "a cotangent is not of the shape of what it belongs to",
    hint: str = "the sizes of this run do not fit; look at the shapes of what this line takes",
) -> Term:
    """x, which must have these sizes along its axes; x itself where it is known to have them."""
    open_axes = tuple(a for a in sorted(sizes) if not isinstance(sizes[a], int) or sizes[a] != x.tensor.shape[a])
    if not open_axes:
        return x
    shape, unknown = sized(x.builder, [sizes[a] for a in open_axes])
    return emit("ensure_sizes", x, *unknown, shape=shape, axes=open_axes, problem=problem, hint=hint)


def broadcast_to(x: Term, dims: Sequence[int | Term]) -> Term:
    shape, unknown = sized(x.builder, dims)
    return x if shape == x.tensor.shape and not unknown else emit("broadcast_to", x, *unknown, shape=shape)


def sum_to(x: Term, dims: Sequence[int | Term]) -> Term:
    """Sum over the axes in which `dims` were broadcast to the shape of x; nothing where the shapes are known equal."""
    shape, unknown = sized(x.builder, dims)
    return x if shape == x.tensor.shape and not unknown else emit("sum_to", x, *unknown, shape=shape)


def zeros(builder: Builder, dtype: np.dtype, dims: Sequence[int | Term]) -> Term:
    """Zeros that take no memory until they are written to."""
    return broadcast_to(constant(builder, 0, dtype), dims)


def transpose(x: Term, axes: Sequence[int]) -> Term:
    return emit("transpose", x, axes=tuple(axes))


def swap_last(x: Term) -> Term:
    """The matrices transposed."""
    return transpose(x, (*range(x.rank - 2), x.rank - 1, x.rank - 2))


# Small helpers that the type rules share.

# Type rule: attributes and operand types to the type of the result.
TensorRule = Callable[..., TensorType]


def tensors(operation: str, operands: Sequence[Type]) -> tuple[TensorType, ...]:
    """The operand types, all of which must be tensors."""
    for position, t in enumerate(operands):
        if not isinstance(t, TensorType):
            raise TypeMismatchError(
                f"{operation}: operand {position} is not a tensor",
                expected="a tensor",
                got=str(t),
                hint="a TensorArray has .read(i) and .stack()",
            )
    return tuple(operands)  # type: ignore[arg-type]


def declared(name: str, arity: int | None, *traits: Trait, **facts: Any) -> Callable[[TensorRule], TensorRule]:
    """Declare an op on tensors, with one result, by its type rule; traits and facts are those of `ir.op.declare`."""

    def register(rule: TensorRule) -> TensorRule:
        def infer(operands: Sequence[Type], attrs: Any, regions: Sequence[RegionType]) -> Sequence[Type]:
            return (rule(attrs, *tensors(name, operands)),)

        declare(name, arity, infer, *traits, **facts)
        return rule

    return register


def stack(operation: str, operand: Type) -> StackType:
    """The operand's type, which must be a stack."""
    if not isinstance(operand, StackType):
        raise TypeMismatchError(
            f"{operation}: the operand is not a stack",
            expected="a stack",
            got=str(operand),
            hint="make one with ctrlgrad.TensorArray",
        )
    return operand


def scalar_index(operation: str, what: str, operand: Type) -> None:
    """Require a scalar integer."""
    if not isinstance(operand, TensorType) or operand.rank != 0 or dtype_kind(operand.dtype) not in "iu":
        raise TypeMismatchError(
            f"{operation}: {what} is not a scalar integer",
            expected="i64[]",
            got=str(operand),
            hint="cast it with .astype(int), and take one number of an array: n[0]",
        )


def require_rank(operation: str, least: int, rank: int, got: object) -> None:
    """Require an array of this rank or more."""
    if rank < least:
        raise ShapeError(
            f"{operation}: needs rank {least} or more",
            expected=f"an array of rank {least} or more",
            got=str(got),
            hint="x[None] has one more axis, of size 1",
        )


def require_integers(operation: str, what: str, dtype: np.dtype) -> None:
    """Require integers of any width."""
    if dtype_kind(dtype) not in "iu":
        raise TypeMismatchError(
            f"{operation}: {what} are not integers",
            expected="an integer dtype",
            got=str(dtype),
            hint=f"{what.removeprefix('the ')}.astype(int)",
        )


def require_sizes(operation: str, sizes: Sequence[Any]) -> None:
    """Refuse negative sizes; those that are traced are not looked at."""
    if any(isinstance(d, int | np.integer) and d < 0 for d in sizes):
        raise ShapeError(
            f"{operation}: a negative size",
            expected="sizes of 0 or more",
            got=str(tuple(sizes)),
            hint="-1 stands for the size that is left over in reshape alone",
        )


def template(operation: str, shape: Shape, dims: Sequence[Type]) -> None:
    """Require one scalar integer operand for each unknown dimension of a shape template.

    Ops that make a shape (`reshape`, `broadcast_to`, ...) hold it as an attribute, known dimensions as
    ints and the unknown ones as None, and take the values of those as operands, in order.
    """
    unknown = sum(d is None for d in shape)
    if unknown != len(dims):
        raise ShapeError(
            f"{operation}: one operand per unknown dimension",
            expected=f"{unknown} operands",
            got=str(len(dims)),
            hint="give the size of every dimension that is None in the shape",
        )
    for t in dims:
        scalar_index(operation, "a dimension", t)


def axes_in_order(operation: str, given: Sequence[int], rank: int) -> list[int]:
    """Axes counted from the front, in the order given; an error for an axis that does not exist or is repeated."""
    result = []
    for axis in given:
        if not -rank <= axis < rank:
            raise ShapeError(
                f"{operation}: axis {axis} is out of range",
                expected=f"-{rank} <= axis < {rank}" if rank else "an array of rank 1 or more",
                got=str(axis),
                hint="axes count from 0, or from the end with -1 for the last"
                if rank
                else "ctrlgrad.numpy.atleast_1d(x) has one",
            )
        result.append(axis % rank)
    if len(set(result)) != len(result):
        raise ShapeError(
            f"{operation}: an axis stands twice",
            expected="every axis at most once",
            got=str(tuple(given)),
            hint="-1 is the last axis, which may be there by its number too",
        )
    return result


def axes(operation: str, given: Sequence[int], rank: int) -> tuple[int, ...]:
    """As `axes_in_order`, sorted."""
    return tuple(sorted(axes_in_order(operation, given, rank)))


_KINDS = {"b": "bool", "i": "int", "u": "unsigned int", "f": "float", "c": "complex"}


def require_kind(operation: str, kinds: str, types: Sequence[TensorType]) -> None:
    """Require operands of the dtype kinds given by NumPy's letters."""
    for t in types:
        if dtype_kind(t.dtype) not in kinds:
            raise TypeMismatchError(
                f"{operation}: dtype {t.dtype.name} is not supported",
                expected="a dtype among " + ", ".join(_KINDS[kind] for kind in kinds),
                got=" and ".join(map(str, types)),
                hint="cast with .astype",
            )


def product(dims: Sequence[Dim]) -> Dim:
    """The product of dimensions, None where one is unknown."""
    total = 1
    for d in dims:
        if d is None:
            return None
        total *= d
    return total


def default_int() -> np.dtype:
    return np.dtype(np.int64)
