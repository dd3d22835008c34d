"""The routines of this folder by name: objects of their own for each type, compiled once per machine when first needed.

A program compiles only the routines that it needs: products of float32 only, if it has no other type; matrix-vector
routines only, if each product has one row or one column; the kernels for its products' sizes; solves only for systems
of equations.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ctrlgrad import forks
from ctrlgrad.engines import threads
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
# Routines on triangles, and LU: of any size, of which parts are products, and of few rows, without any.
_ANY, _FEW = "triangles of {}", "small triangles of {}"
_ORTHONORMAL = "orthonormal factors of {}"
_TRANSFORMS = "transforms: {}"
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
    """Routines that are compiled together: their symbols, and what their text is made for."""

    name: str
    symbols: tuple[str, ...]
    kinds: tuple[Real, ...]


def parts(machine: Target) -> list[Part]:
    """Parts of the library, callees before their callers."""
    kinds = real.reals(machine)
    simple = tuple(f"cg_gemm_{kind}" for kind in lu.INTEGERS)
    vectors = [Part("vectors", tuple(name.format(kind.name) for name in _VECTORS), (kind,)) for kind in kinds]
    products = [Part("products", tuple(name.format(kind.name) for name in _PRODUCTS), (kind,)) for kind in kinds]
    alone = [Part(name, (name,), (kind,)) for kind in kinds for name in kernels.compiled_alone(kind)]
    systems = [Part("solves", tuple(solves.symbols(kind)), (kind,)) for kind in kinds]
    numbers = [(kind, field) for kind in kinds for field in fields.fields(kind)]
    systems += [Part(_ORTHONORMAL.format(f.name), tuple(reflectors.symbols(f)), (kind,)) for kind, f in numbers]
    systems += [Part(name, tuple(spectra.symbols(kind, name)), (kind,)) for kind in kinds for name in ("eigh", "svd")]
    triangles = [
        Part(name.format(field.name), tuple(_of_triangles(field, name is _FEW)), (kind,))
        for kind in kinds
        for field in fields.fields(kind)
        for name in (_ANY, _FEW)
    ]
    systems += [
        Part(_TRANSFORMS.format(symbol), (symbol,), (kind,))
        for kind in kinds
        for lanes in transforms.lanes_of(kind)
        for symbol in (transforms.symbol(name, kind.name, lanes) for name in transforms.PARTS)
    ]
    integers = Part("plain", simple, kinds)
    return [Part("pool", pool.SYMBOLS, kinds), *vectors, *alone, *products, *systems, *triangles, integers]


def _of_triangles(field: Field, small: bool) -> list[str]:
    found = [*triangular.symbols(field, small), *cholesky.symbols(field, small)]
    return found if small else [*found, *lu.symbols(field)]


def source(machine: Target, part: Part) -> str:
    """The text of a part for a processor."""
    lines = [*_INTRINSICS, *(line for kind in part.kinds for line in kind.declarations)]
    if part.name == "pool":
        lines.append(
            pool.pool(machine, max(f(k) for k in part.kinds for f in (blocks.most_scratch, transforms.most_scratch)))
        )
    elif part.name == "plain":
        lines += lu.plain()
    elif part.name == "vectors":
        (kind,) = part.kinds
        lines += [*pool.DECLARATIONS, *vector.vectors(kind)]
        lines += shared.shared(f"cg_gemv_{kind.name}", vector.by_vectors_name(kind), kind)
    elif part.name == "products":
        (kind,) = part.kinds
        lines += [*pool.DECLARATIONS, kernels.table(kind)]
        lines += [*blocks.blocks(kind), *shared.shared(f"cg_gemm_{kind.name}", f"gemm_{kind.name}", kind)]
        lines += shared.shared(f"cg_gemm_packed_{kind.name}", f"packed_{kind.name}", kind)
    elif part.name == "solves":
        (kind,) = part.kinds
        lines += solves.solves(kind)
    elif part.name.startswith(_ORTHONORMAL.format("")):
        (kind,) = part.kinds
        lines += next(reflectors.orthonormal(f) for f in fields.fields(kind) if part.name.endswith(f" {f.name}"))
    elif part.name.startswith(_TRANSFORMS.format("")):
        (kind,) = part.kinds
        lines += transforms.routine(part.symbols[0], kind)
    elif part.name in ("eigh", "svd"):
        (kind,) = part.kinds
        lines += spectra.spectrum(kind, real.reals(machine)[1], part.name)
    elif (found := _triangles(part)) is not None:
        field, small = found
        lines += [] if small else fields.declarations(field.real)
        lines += [*triangular.parts(field, small), *triangular.triangular(field, small)]
        lines += cholesky.cholesky(field, small)
        lines += [] if small else lu.lu(field)
    else:
        (kind,) = part.kinds
        lines.append(kernels.source(kind, part.name))
    return "\n".join(lines)


def compiled(machine: Target, part: Part) -> bytes:
    """Variables become registers, loops are turned; the rest is as written: LLVM's long pipeline finds nothing more.

    What threads do to share work and to wait is a few instructions, for which no pass pays. Time goes by in the
    kernels: how a product is cut into blocks, and packing, which waits for memory, are made with LLVM's quick code
    in a third of the time, and products take at most 2 % longer by it.
    """
    if part.name == "pool":
        return target.compiled(source(machine, part), (), target.QUICK)
    is_quick = part.name == "products" or part.name in {pack.pack_name(k, side) for k in part.kinds for side in "ab"}
    passes = ("SROA", "SimplifyCFG", "InstCombine", "LoopRotate", "SimplifyCFG")
    return target.compiled(source(machine, part), passes, target.QUICK if is_quick else target.GOOD)


def _uses(part: Part) -> Sequence[str]:
    """The symbols of other parts that one calls."""
    if part.name in ("vectors", "products"):
        return pool.SYMBOLS
    found = _triangles(part)
    if found is None or found[1]:
        return ()
    return [name.format(found[0].real.name) for name in ("cg_gemm_{}", "cg_gemm_scratch_{}")]


def _triangles(part: Part) -> tuple[Field, bool] | None:
    """The numbers of a part with routines on triangles, and whether it is the one for few rows; None of another."""
    every = ((field, name) for kind in part.kinds for field in fields.fields(kind) for name in (_ANY, _FEW))
    return next(((field, name is _FEW) for field, name in every if part.name == name.format(field.name)), None)


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
            uses = {symbol: self[symbol] for symbol in _uses(part)}
            with self._lock:
                if name not in self._found:
                    self._found.update(self._linked(part, uses))
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

    def _linked(self, part: Part, uses: Mapping[str, int]) -> Mapping[str, int]:
        return objects.library(*self._source(part), uses).kept()

    def _source(self, part: Part) -> tuple[str | None, Callable[[], ObjectCode]]:
        """The key of a part's object, and what makes it."""
        key = objects.key_of([part.name, *(kind.name for kind in part.kinds)], _FILES)
        return key, lambda: ObjectCode(part.symbols, compiled(self._machine, part))
