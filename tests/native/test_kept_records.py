"""Records as bytes: what comes back, what is one and what stays two, and what is refused."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ctrlgrad
from ctrlgrad.engines.native import kept_records
from ctrlgrad.engines.native.kept_records import CannotRead, CannotWrite, Vocabulary, of_record, read, written
from ctrlgrad.ir import TensorType, attributes
from ctrlgrad.plan.expression import Instruction
from ctrlgrad.plan.model import Block
from ctrlgrad.plan.sizes import Size
from ctrlgrad.records import record

NOTHING_MORE = Vocabulary({}, {})


def again(item: Any, more: Vocabulary = NOTHING_MORE) -> Any:
    return read(written(item, more), more)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(max_size=9)


@given(st.recursive(LEAVES, lambda items: st.lists(items).map(tuple) | st.dictionaries(st.text(), items)))
def test_leaves_tuples_and_dictionaries_come_back(item: Any) -> None:
    found = again(item)
    assert (found, repr(found)) == (item, repr(item))  # so that True is not 1, nor -0.0 zero


def test_numbers_that_are_equal_stay_what_they_are() -> None:
    item = (1, True, 1.0, 0.0, -0.0, 0, False, np.float64(0.0), np.float64(-0.0))
    assert repr(again(item)) == repr(item) and list(map(type, again(item))) == list(map(type, item))


@pytest.mark.parametrize(
    "item",
    [
        slice(1, None, -2),
        np.dtype("float16"),
        np.float32(0.1),
        np.complex128(complex(1.5, -0.0)),
        np.True_,
        TensorType(np.dtype("int8"), (2, None)),
        Size(3, ("a", "a", "b")),
        Instruction("constant", (), np.dtype("float64"), np.float64("nan")),
        attributes.Cast(dtype=np.dtype("complex64")),
        next(iter(attributes.Dynamic)),
    ],
    ids=repr,
)
def test_numbers_and_records_come_back(item: Any) -> None:
    found = again((item, item))
    assert type(found[0]) is type(item) and repr(found[0]) == repr(item) and found[0] is found[1]


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float64", "complex128"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)])
def test_arrays_come_back_where_code_can_read_them(dtype: str, shape: tuple[int, ...]) -> None:
    """Aligned, whatever bytes stand before them, in C order, and not to be written to."""
    array = np.arange(np.prod(shape), dtype="int64").reshape(shape, order="F").astype(dtype)
    found = again((b"!", array))[1]
    assert found.dtype is array.dtype and found.shape == shape and found.tobytes() == array.tobytes()
    assert found.flags.aligned and found.flags.c_contiguous and not found.flags.writeable


def test_what_is_one_object_comes_back_as_one_and_what_are_two_as_two() -> None:
    one, other = Block(()), Block(())
    a, b, c = again((one, other, one))
    assert a is c and a is not b
    a, b = again(({}, {}))
    assert a is not b
    # Equal by what they say: one row is enough.
    assert written((Size(2), Size(2)), NOTHING_MORE).count(b"[") == written((Size(2),), NOTHING_MORE).count(b"[")


class Pair(NamedTuple):
    left: int
    right: int


@record(kw_only=True)
class Wider(attributes.Attributes):
    more: int = 0


@record
class Own:
    item: Any


@pytest.mark.parametrize("item", [Pair(1, 2), Wider(more=1), Own(1), {1, 2}, [1], object(), len, np.array([None])])
def test_a_class_that_is_not_declared_is_refused_whatever_it_inherits_from(item: object) -> None:
    with pytest.raises(CannotWrite):
        written((1, (item,)), NOTHING_MORE)


def test_a_vocabulary_adds_kinds() -> None:
    more = of_record(Own)
    assert again(Own((1, Own(2))), more) == Own((1, Own(2)))
    with pytest.raises(CannotRead, match="Own"):
        read(written(Own(1), more), NOTHING_MORE)


def test_regions_in_regions_without_end_are_refused() -> None:
    item: tuple[Any, ...] = ()
    for _ in range(5000):
        item = (item,)
    with pytest.raises(CannotWrite, match="deep"):
        written(item, NOTHING_MORE)


WHOLE = written((Size(3, ("n",)), b"abc", np.arange(3.0), TensorType(np.dtype("f4"), (1,))), NOTHING_MORE)


@given(st.integers(0, len(WHOLE) - 1), st.binary(max_size=3))
def test_damaged_bytes_are_told_from_whole_ones(place: int, other: bytes) -> None:
    """They are read as something else, or refused; no other error comes of them."""
    for data in (WHOLE[:place] + other, WHOLE[:place] + other + WHOLE[place + len(other) :]):
        try:
            read(data, NOTHING_MORE)
        except CannotRead:
            continue


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"{}\n",
        b"[]\n",
        b'{"format":"other","kinds":["atom","bytes"],"rows":[[0,1]]}\n',
        WHOLE + b"more",
        WHOLE[:-1],
        WHOLE.replace(b"sizes.Size", b"os.system_"),
        WHOLE.replace(b"[0,3]", b"[7,3]"),
    ],
)
def test_bytes_that_nobody_has_written_are_refused(data: bytes) -> None:
    with pytest.raises(CannotRead):
        read(data, NOTHING_MORE)


def test_nothing_is_pickled() -> None:
    """No module of the product imports what runs code that data names."""
    assert {name for path in modules() for name in imports(path)} & {"pickle", "marshal", "shelve", "dill"} == set()


def modules() -> Iterator[Path]:
    package = Path(ctrlgrad.__file__).parent
    for name in ("ctrlgrad", "gradients", "stacks", "memory"):
        yield from (package.parent / name).rglob("*.py")


def imports(path: Path) -> Iterator[str]:
    for item in ast.walk(ast.parse(path.read_text())):
        if isinstance(item, ast.Import):
            yield from (each.name.partition(".")[0] for each in item.names)
        elif isinstance(item, ast.ImportFrom):
            yield str(item.module).partition(".")[0]


def test_no_two_kinds_have_one_name() -> None:
    names = [name for home in kept_records.HOMES for name in kept_records.kinds_of(home).make]
    assert len(set(names)) == len(names) > 60
