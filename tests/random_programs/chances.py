"""Lines of random programs: keys and random numbers. The twin draws the same ones at once."""

from __future__ import annotations

from random_programs.kinds import SCALAR, Float, Int, Key
from random_programs.operations import operation
from random_programs.writer import Writer


def _key(w: Writer) -> str | None:
    found = w.pick(lambda kind: isinstance(kind, Key))
    return None if found is None else found.name


@operation(6)
def new_key(w: Writer) -> bool:
    if "random" not in w.features:
        return False
    name, key = w.int_variable(), _key(w)
    if key is not None and name is not None and w.chance(2):
        w.line(Key(), "fold_in", f"cg.random.fold_in({key}, {name})")
    elif key is not None:
        w.line(Key(), "split", f"cg.random.split({key})[{w.number(0, 1)}]")
    elif name is not None:
        w.line(Key(), "key", f"cg.random.key({name})")
    return key is not None or name is not None


@operation(12)
def random_numbers(w: Writer) -> bool:
    key = _key(w)
    if key is None:
        return False
    form = w.choose(("uniform", "scaled", "integer"))
    if form == "integer":
        w.line(Int(), "random integer", f"cg.random.randint({key}, (), 0, 4)")
        return True
    found = w.floats(lambda k: k.is_static)
    if found is None or form == "uniform":
        w.line(SCALAR, "random numbers", f"cg.random.uniform({key}) - 0.5")
        return True
    x, kind = found
    w.line(Float(kind.dims), "random numbers", f"{x} * cg.random.uniform({key}, {kind.dims})")
    return True
