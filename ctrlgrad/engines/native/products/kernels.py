"""The kernels that products of one type call, each an object of its own: a product of given sizes needs few of them.

A table in memory has their addresses (and another one those of `times`). A module that calls a product also declares
the kernels that its sizes need (see `blocks.needed`), so that they are compiled and in the table before it runs.
"""

from __future__ import annotations

from ctrlgrad.engines.native.products import times
from ctrlgrad.engines.native.products.function import Function
from ctrlgrad.engines.native.products.pack import PARAMETERS as PACK
from ctrlgrad.engines.native.products.pack import Packing, pack, pack_name
from ctrlgrad.engines.native.products.real import Real
from ctrlgrad.engines.native.products.tiles import PARAMETERS as TILE
from ctrlgrad.engines.native.products.tiles import heights, tile, tile_name, widths
from ctrlgrad.engines.native.products.vector import by_vectors_name
from ctrlgrad.engines.native.products.whole import GEMM


def kernels(real: Real) -> list[str]:
    """Their names, in the order of the table."""
    return [*_tiles(real), pack_name(real, "a"), pack_name(real, "b"), by_vectors_name(real)]


def source(real: Real, name: str) -> str:
    """The text of one that is compiled alone."""
    for operand, width in (("a", real.rows), ("b", real.columns)):
        if name == pack_name(real, operand):
            return pack(name, Packing(real, width))
    if name in times.names(real):
        return times.rows(real) if name == times.rows_name(real) else times.columns(real)
    return tile(real, *_tiles(real)[name])


def _tiles(real: Real) -> dict[str, tuple[int, int, bool, bool]]:
    """By the names of tiles, what `tile` makes them from."""
    sizes = [(rows, *width) for rows in heights(real) for width in widths(real)]
    return {tile_name(real, *size, in_order): (*size, in_order) for in_order in (True, False) for size in sizes}


def signature(name: str) -> str:
    """As a module declares a kernel."""
    of = {"cg_tile": TILE, "cg_pack": PACK, "cg_times": times.PARAMETERS}
    parameters = next((found for start, found in of.items() if name.startswith(start)), GEMM)
    return f"void @{name}({', '.join(kind for kind, _ in parameters)})"


def table_name(real: Real) -> str:
    return f"cg_kernels_{real.name}"


def table(real: Real) -> str:
    return f"@{table_name(real)} = global [{len(kernels(real))} x ptr] zeroinitializer, align 64\n"


def call(f: Function, real: Real, name: str, arguments: str, other: tuple[str, str] | None = None) -> None:
    """Call a kernel that the caller's caller has declared, or the `other` one where a condition holds."""
    names = kernels(real)
    table = f"getelementptr ([{len(names)} x ptr], ptr @{table_name(real)}, i64 0, i64"
    place = f"{table} {names.index(name)})"
    if other is not None:
        place = f.select(other[0], "ptr", f"{table} {names.index(other[1])})", place)
    f.line(f"call void {f.op(f'load atomic ptr, ptr {place} monotonic, align 8')}({arguments})")
