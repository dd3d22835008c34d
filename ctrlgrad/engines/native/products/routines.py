"""The routines of this folder by name: objects of their own for each type, compiled once per machine when first needed.

A program compiles only the routines that it needs: products of float32 only, if it has no other type; matrix-vector
routines only, if each product has one row or one column; the kernels for its products' sizes; solves only for systems
of equations.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from ctrlgrad import forks, threads
from ctrlgrad.engines.native import expressions, loops, objects, reductions, sum_blocks, target, text
from ctrlgrad.engines.native.objects import ObjectCode
from ctrlgrad.engines.native.products import (
    blocks,
    cholesky,
    fields,
    kernels,
    lu,
    pack,
    pool,
    real,
    reflectors,
    shared,
    solves,
    spectra,
    times,
    transforms,
    triangular,
    vector,
)
from ctrlgrad.engines.native.products.fields import Field
from ctrlgrad.engines.native.products.real import Real
from ctrlgrad.engines.native.target import Target
from ctrlgrad.ops import linalg
from ctrlgrad.plan import model
from ctrlgrad.plan.lowering import fourier
from ctrlgrad.records import record

# Files of which the routines are made: an object on disk is valid for their text alone. The bytes of a thread's
# scratch, for one, follow from limits in `fourier`.
_MODULES = (expressions, fourier, linalg, loops, model, reductions, sum_blocks, text, threads)
_FILES = [*sorted(map(str, Path(__file__).parent.glob("*.py"))), *(str(module.__file__) for module in _MODULES)]
_VECTORS = ("cg_gemv_{}", "cg_by_vectors_{}", "cg_times_{}")
_PRODUCTS = ("cg_gemm_{}", "cg_gemm_packed_{}", "cg_gemm_scratch_{}", "cg_kernels_{}")
_INTRINSICS = (
    "declare ptr @llvm.launder.invariant.group.p0(ptr)",
    "declare ptr @calloc(i64, i64)",
    "declare void @free(ptr)",
    "declare i64 @llvm.smin.i64(i64, i64)",
    "declare i64 @llvm.smax.i64(i64, i64)",
    "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)",
)


@record
class Part:
    """Routines that are compiled together: their symbols, the types and the text that they are made of, and the symbols
    of other parts that they call."""

    name: str
    symbols: tuple[str, ...]
    kinds: tuple[Real, ...]
    lines: Callable[[], Sequence[str]]
    uses: Sequence[str] = ()


def parts(machine: Target) -> list[Part]:
    """Parts of the library."""
    kinds = real.reals(machine)

    def whole_pool() -> list[str]:
        scratch = max(most(kind) for kind in kinds for most in (blocks.most_scratch, transforms.most_scratch))
        return [pool.pool(machine, scratch)]

    found = [Part("pool", pool.SYMBOLS, kinds, whole_pool)]
    for kind in kinds:
        found += _of_kind(kind, kinds[1])
    return [*found, Part("plain", tuple(f"cg_gemm_{kind}" for kind in lu.INTEGERS), kinds, lu.plain)]


def _of_kind(kind: Real, widest: Real) -> Iterator[Part]:
    """Parts of one type; eigenvalues are found in the `widest` one."""
    n = kind.name

    def part(name: str, symbols: Iterable[str], lines: Callable[[], Sequence[str]], uses: Sequence[str] = ()) -> Part:
        return Part(name, tuple(symbol.format(n) for symbol in symbols), (kind,), lines, uses)

    def vectors() -> list[str]:
        shares = shared.shared(f"cg_gemv_{n}", vector.by_vectors_name(kind), kind)
        return [*pool.DECLARATIONS, *vector.vectors(kind), *shares]

    def products() -> list[str]:
        shares = [*shared.shared(f"cg_gemm_{n}", f"gemm_{n}", kind)]
        shares += shared.shared(f"cg_gemm_packed_{n}", f"packed_{n}", kind)
        return [*pool.DECLARATIONS, kernels.table(kind), *blocks.blocks(kind), *shares]

    yield part("vectors", _VECTORS, vectors, pool.SYMBOLS)
    for name in [*kernels.kernels(kind), *times.names(kind)]:
        if name == vector.by_vectors_name(kind):
            continue  # a part of the vectors' object
        yield part(name, (name,), lambda name=name: [kernels.source(kind, name)])  # type: ignore[misc]
    yield part("products", _PRODUCTS, products, pool.SYMBOLS)
    yield part("solves", solves.symbols(kind), partial(solves.solves, kind))
    for name in ("eigh", "svd"):
        yield part(name, spectra.symbols(kind, name), partial(spectra.spectrum, kind, widest, name))
    for symbol in (
        transforms.symbol(name, n, lanes) for lanes in transforms.lanes_of(kind) for name in transforms.PARTS
    ):
        yield part(f"transforms: {symbol}", (symbol,), partial(transforms.routine, symbol, kind))
    for field in fields.fields(kind):
        orthonormal = partial(reflectors.orthonormal, field)
        yield part(f"orthonormal factors of {field.name}", reflectors.symbols(field), orthonormal)
        of_products = (f"cg_gemm_{n}", f"cg_gemm_scratch_{n}")
        symbols = [*triangular.symbols(field, False), *cholesky.symbols(field, False), *lu.symbols(field)]
        yield part(f"triangles of {field.name}", symbols, partial(_triangles, field, False), of_products)
        symbols = [*triangular.symbols(field, True), *cholesky.symbols(field, True)]
        yield part(f"small triangles of {field.name}", symbols, partial(_triangles, field, True))


def _triangles(field: Field, small: bool) -> list[str]:
    """Routines on triangles, and LU: of any size, of which parts are products, or of few rows, without any."""
    found = [*triangular.parts(field, small), *triangular.triangular(field, small), *cholesky.cholesky(field, small)]
    return found if small else [*fields.declarations(field.real), *found, *lu.lu(field)]


def source(part: Part) -> str:
    """The text of a part."""
    return "\n".join([*_INTRINSICS, *(line for kind in part.kinds for line in kind.declarations), *part.lines()])


def compiled(machine: Target, part: Part) -> bytes:
    """Variables become registers, loops are turned; the rest is as written: LLVM's long pipeline finds nothing more.

    What threads do to share work and to wait is a few instructions, for which no pass pays. Time goes by in the
    kernels: how a product is cut into blocks, and packing, which waits for memory, are made with LLVM's quick code
    in a third of the time, and products take at most 2 % longer by it.
    """
    if part.name == "pool":
        return target.compiled(source(part), (), target.QUICK)
    is_quick = part.name == "products" or part.name in {pack.pack_name(k, side) for k in part.kinds for side in "ab"}
    passes = ("SROA", "SimplifyCFG", "InstCombine", "LoopRotate", "SimplifyCFG")
    return target.compiled(source(part), passes, target.QUICK if is_quick else target.GOOD)


class Routines(Mapping[str, int]):
    """The addresses of all routines by name; a part is linked, from disk or compiled, when one of its names is read."""

    def __init__(self, machine: Target) -> None:
        self._machine = machine
        self._parts = parts(machine)
        self._part_of = {name: part for part in self._parts for name in part.symbols}
        self._found: dict[str, int] = {}
        self._tables: list[np.ndarray] = []
        self._lock = forks.lock()

    def __getitem__(self, name: str) -> int:
        if name not in self._found and name.startswith(transforms.TABLE):
            made = transforms.table(name, self)
            self._tables.append(made)
            self._found[name] = made.ctypes.data
        if name not in self._found:
            part = self._part_of[name]
            uses = {symbol: self[symbol] for symbol in part.uses}
            with self._lock:
                if name not in self._found:
                    self._found.update(objects.library(*self._source(part), uses).kept())
                    self._fill_tables(part.kinds)
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._part_of)

    def __len__(self) -> int:
        return len(self._part_of)

    def prepare(self, names: Sequence[str]) -> None:
        """Have the parts of routines compiled meanwhile that will be asked for."""
        tables = [name for name in names if name.startswith(transforms.TABLE)]
        wanted = [*names, *(each for name in tables for each in transforms.called(name))]
        missing = [name for name in wanted if name not in self._found and name not in tables]
        for part in dict.fromkeys(self._part_of[name] for name in missing):
            objects.prepare(*self._source(part))

    def _fill_tables(self, kinds: Iterable[Real]) -> None:
        """Have products find the kernels that there are."""
        for kind in kinds:
            tables = {kernels.table_name(kind): kernels.kernels(kind), times.table_name(kind): times.names(kind)}
            for table, names in tables.items():
                for place, name in enumerate(names):
                    if table in self._found and name in self._found:
                        ctypes.c_int64.from_address(self._found[table] + 8 * place).value = self._found[name]

    def _source(self, part: Part) -> tuple[str | None, Callable[[], ObjectCode]]:
        """The key of a part's object, and what makes it."""
        key = objects.key_of([part.name, *(kind.name for kind in part.kinds)], _FILES)
        return key, lambda: ObjectCode(part.symbols, compiled(self._machine, part))
