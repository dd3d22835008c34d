"""What the generated code is made of besides arithmetic: pointers, loads, stores and the matrix product.

Generated functions take one argument, an array of int64 (the table), and find in it sizes and addresses. A loop over
elements names itself by a number: within it no load touches what a store writes, and no two stores touch each other
(but for `fetch`, which promises nothing). That is told to LLVM as alias scopes, so that a loop over many arrays
vectorises without run-time checks. Source: LLVM language reference, "noalias and alias.scope metadata".
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import RequireLiteralValue
from numba.extending import intrinsic

from ctrlgrad.engines.native.program import SCOPES

NAMES = {
    "float32": types.float32,
    "float64": types.float64,
    "int8": types.int8,
    "int16": types.int16,
    "int32": types.int32,
    "int64": types.int64,
    "uint8": types.uint8,
    "uint16": types.uint16,
    "uint32": types.uint32,
    "uint64": types.uint64,
    # A bool in memory is a byte.
    "bool": types.uint8,
    "complex64": types.complex64,
    "complex128": types.complex128,
}


# What BLAS is given for an integer: a routine that takes four bytes reads the lower half.
_INTEGER = ir.IntType(64)


def _pointer_maker(dtype: Any) -> Any:
    @intrinsic
    def pointer(typing_context: Any, address: Any) -> Any:
        """An address as a pointer."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return types.CPointer(dtype)(types.int64), generate

    return pointer


def _literal(value: Any) -> int:
    if not isinstance(value, types.IntegerLiteral):
        raise RequireLiteralValue("the number of a loop or store is a literal")
    number: int = value.literal_value
    return number


def _scopes(builder: Any, loop: int) -> list[Any]:
    module = builder.module
    known = module.__dict__.setdefault("_ctrlgrad_scopes", {})
    if loop not in known:
        domain = module.add_metadata([ir.MetaDataString(module, f"ctrlgrad.{module.name}.{loop}")])
        known[loop] = [
            module.add_metadata([ir.MetaDataString(module, f"ctrlgrad.{module.name}.{loop}.{k}"), domain])
            for k in range(SCOPES)
        ]
    scopes: list[Any] = known[loop]
    return scopes


@intrinsic
def scopes(typing_context: Any, loop: Any, stores: Any) -> Any:
    """Say that a loop over elements begins: what its loads and stores promise holds until it begins again."""
    number, count = _literal(loop), _literal(stores)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.MetaDataType()])
        declare = cgutils.get_or_insert_function(builder.module, kind, "llvm.experimental.noalias.scope.decl")
        for scope in _scopes(builder, number)[:count]:
            builder.call(declare, [builder.module.add_metadata([scope])])

    return types.void(types.literal(number), types.literal(count)), generate


@intrinsic
def load(typing_context: Any, pointer: Any, index: Any, loop: Any) -> Any:
    """Read an element that no store of this loop writes."""
    number = _literal(loop)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = builder.load(builder.gep(args[0], [args[1]]))
        value.set_metadata("noalias", builder.module.add_metadata(_scopes(builder, number)))
        return value

    return pointer.dtype(pointer, types.int64, types.literal(number)), generate


@intrinsic
def fetch(typing_context: Any, pointer: Any, index: Any) -> Any:
    """Read an element."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.gep(args[0], [args[1]]))

    return pointer.dtype(pointer, types.int64), generate


@intrinsic
def store(typing_context: Any, pointer: Any, index: Any, value: Any, loop: Any, number: Any) -> Any:
    """Write an element that no `load` and no store of another number in this loop touches."""
    loop_number, own = _literal(loop), _literal(number)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        written = builder.store(args[2], builder.gep(args[0], [args[1]]))
        scopes = _scopes(builder, loop_number)
        written.set_metadata("alias.scope", builder.module.add_metadata([scopes[own]]))
        others = [scope for k, scope in enumerate(scopes) if k != own]
        written.set_metadata("noalias", builder.module.add_metadata(others))

    signature = types.void(pointer, types.int64, pointer.dtype, types.literal(loop_number), types.literal(own))
    return signature, generate


@intrinsic
def put(typing_context: Any, pointer: Any, index: Any, value: Any) -> Any:
    """Write an element."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], builder.gep(args[0], [args[1]]))

    return types.void(pointer, types.int64, pointer.dtype), generate


@intrinsic
def shifted(typing_context: Any, pointer: Any, distance: Any) -> Any:
    """The pointer some elements further on."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.gep(args[0], [args[1]])

    return pointer(pointer, types.int64), generate


@intrinsic
def span(typing_context: Any, pointer: Any, index: Any, count: Any, writes: Any) -> Any:
    """The address of an element, for a callback that reads (or `writes`) `count` elements from there."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ptrtoint(builder.gep(args[0], [args[1]]), ir.IntType(64))

    return types.int64(pointer, types.int64, types.int64, types.int64), generate


@intrinsic
def invoke(typing_context: Any, address: Any, number: Any, addresses: Any) -> Any:
    """Call back for op `number` with a table of addresses; 0 unless that raised."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(64), [ir.IntType(64), args[2].type])
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])

    return types.int64(types.int64, types.int64, addresses), generate


@intrinsic
def look(typing_context: Any, address: Any) -> Any:
    """Let Python handle signals: how many iterations may pass before the next look, or 0 to stop."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(64), [])
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), [])

    return types.int64(types.int64), generate


@intrinsic
def gemm(
    typing_context: Any,
    address: Any,
    transpose_a: Any,
    transpose_b: Any,
    m: Any,
    n: Any,
    k: Any,
    alpha: Any,
    a: Any,
    lda: Any,
    b: Any,
    ldb: Any,
    beta: Any,
    c: Any,
    ldc: Any,
) -> Any:
    """C = alpha op(A) op(B) + beta C on column-major matrices, by the BLAS routine at `address` (all by reference)."""
    number = types.int64
    signature = types.void(
        types.int64, number, number, number, number, number, c.dtype, a, number, b, number, c.dtype, c, number
    )

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte, integer = ir.IntType(8), _INTEGER

        def spilled(value: Any, kind: Any) -> Any:
            return _spilled(builder, value, kind)

        routine, ta, tb, m_, n_, k_, alpha_, a_, lda_, b_, ldb_, beta_, c_, ldc_ = args
        chars = [spilled(x, byte) for x in (ta, tb)]
        sizes = [spilled(x, integer) for x in (m_, n_, k_)]
        scalars = [spilled(x, x.type) for x in (alpha_, beta_)]
        leading = [spilled(x, integer) for x in (lda_, ldb_, ldc_)]
        given = [*chars, *sizes, scalars[0], a_, leading[0], b_, leading[1], scalars[1], c_, leading[2]]
        kind = ir.FunctionType(ir.VoidType(), [x.type for x in given])
        builder.call(builder.inttoptr(routine, kind.as_pointer()), given)

    return signature, generate


@intrinsic
def gemv(
    typing_context: Any,
    address: Any,
    transpose: Any,
    m: Any,
    n: Any,
    alpha: Any,
    a: Any,
    lda: Any,
    x: Any,
    step_x: Any,
    beta: Any,
    y: Any,
    step_y: Any,
) -> Any:
    """y = alpha op(A) x + beta y for a column-major matrix of m rows and n columns, by the routine at `address`."""
    number = types.int64
    signature = types.void(types.int64, number, number, number, y.dtype, a, number, x, number, y.dtype, y, number)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        routine, transposed, m_, n_, alpha_, a_, lda_, x_, step_x_, beta_, y_, step_y_ = args
        slots = [
            _spilled(builder, transposed, ir.IntType(8)),
            *(_spilled(builder, v, _INTEGER) for v in (m_, n_)),
            _spilled(builder, alpha_, alpha_.type),
            a_,
            _spilled(builder, lda_, _INTEGER),
            x_,
            _spilled(builder, step_x_, _INTEGER),
            _spilled(builder, beta_, beta_.type),
            y_,
            _spilled(builder, step_y_, _INTEGER),
        ]
        kind = ir.FunctionType(ir.VoidType(), [v.type for v in slots])
        builder.call(builder.inttoptr(routine, kind.as_pointer()), slots)

    return signature, generate


def _spilled(builder: Any, value: Any, kind: Any) -> Any:
    """The address of a copy of a value: what Fortran wants."""
    slot = cgutils.alloca_once(builder, kind)
    narrow = isinstance(kind, ir.IntType) and value.type != kind
    builder.store(builder.trunc(value, kind) if narrow else value, slot)
    return slot


POINTERS = {name: _pointer_maker(dtype) for name, dtype in NAMES.items()}
