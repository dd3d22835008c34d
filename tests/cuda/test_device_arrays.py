"""Arrays that stay on the card: results, what other libraries lend and are lent, what is donated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from instruments.stand_in import StandIn, StandInArray, StandInDevice, memory_at

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.cuda import cupy_library
from ctrlgrad.engines.device_array import DeviceArray
from ctrlgrad.errors import IndexOutOfRangeError, TypeMismatchError, UserInputError


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """A stand-in in the place of the first device."""
    found = StandIn()
    monkeypatch.setattr(cupy_library, "cupy_library", lambda number=0: found)
    return found


class Foreign:
    """An array of another library on the card: there is the interface, and nothing else."""

    def __init__(self, data: np.ndarray) -> None:
        self.data = data
        self.shape, self.dtype = data.shape, data.dtype

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.data.__array_interface__, "version": 3, "stream": 1}


def written(x: Any) -> Any:
    """Loop that the engine computes in place if it owns x."""
    return cg.fori_loop(0, 3, lambda i, x: x.at[i].set(-1.0), x)


def test_results_stay_on_the_card(card: StandIn) -> None:
    x = np.arange(4.0)
    found = cg.function(lambda x: (np.sin(x), np.sum(x)), engine="cuda")(x)
    assert all(isinstance(y, DeviceArray) for y in found)
    np.testing.assert_array_equal(np.asarray(found[0]), np.sin(x))
    assert (found[0].shape, found[0].dtype, found[0].device, float(found[1])) == ((4,), x.dtype, card.name, 6.0)
    assert repr(found[1]).startswith("DeviceArray(6.") and f"{found[1]:.2f}" == "6.00"


def test_a_chain_of_calls_copies_nothing_to_the_host(card: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0
    read = card.read

    def counted(arrays: Any) -> Any:
        nonlocal reads
        reads += 1
        return read(arrays)

    monkeypatch.setattr(card, "read", counted)
    step = cg.function(lambda x: np.tanh(x) * 0.9 + 0.1, engine="cuda")
    x = step(np.linspace(-1.0, 1.0, 5))
    for _ in range(4):
        x = step(x)
    assert reads == 0
    assert np.asarray(x).shape == (5,)
    assert reads == 1


@pytest.mark.parametrize("make", [Foreign, lambda x: StandInArray(x)], ids=["another library's", "the library's own"])
def test_arguments_are_borrowed(card: StandIn, make: Any) -> None:
    """Only the call holds a reference to the argument, and yet the memory is the caller's."""
    memory = np.arange(4.0)
    found = cg.function(written, engine="cuda")(make(memory))
    np.testing.assert_array_equal(np.asarray(found), [-1.0, -1.0, -1.0, 3.0])
    np.testing.assert_array_equal(memory, np.arange(4.0))


def test_an_argument_that_is_a_result_is_copied(card: StandIn) -> None:
    memory = np.arange(4.0)
    (found,) = [cg.function(lambda x: x, engine="cuda")(Foreign(memory))]
    memory[0] = 9.0
    np.testing.assert_array_equal(np.asarray(found), np.arange(4.0))


def test_results_share_no_memory(card: StandIn) -> None:
    """Neither with each other nor with the program's constants: a donated one may be overwritten."""
    table = np.arange(3.0)
    f = cg.function(lambda x: (x + 1.0, x + 1.0, (x + 1.0)[1:], cg.function(lambda: table)() * 1), engine="cuda")
    constant = cg.function(lambda x: cg.cond(x[0] > 0, lambda: table, lambda: -table), engine="cuda")
    x = np.ones(3)
    addresses = [y.__cuda_array_interface__["data"][0] for y in f(x)]
    assert len(set(addresses)) == 4
    overwritten = cg.function(written, engine="cuda", donate_argnums=0)(constant(x))
    np.testing.assert_array_equal(np.asarray(overwritten), [-1.0, -1.0, -1.0])
    np.testing.assert_array_equal(np.asarray(constant(x)), table)


def test_a_donated_argument_is_overwritten_where_it_lies(card: StandIn) -> None:
    source = cg.function(lambda x: x + 1.0, engine="cuda")
    kept, given = source(np.arange(4.0)), source(np.arange(4.0))
    address = given._array.data.ctypes.data
    found = cg.function(written, engine="cuda", donate_argnums=(0,))(given)
    assert found._array.data.ctypes.data == address and given.is_donated
    with pytest.raises(UserInputError, match="donated is used again"):
        np.asarray(given)
    with pytest.raises(UserInputError, match="donated is used again"):
        source(given)
    assert "donated" in repr(given)
    again = cg.function(written, engine="cuda")(kept)
    assert again._array.data.ctypes.data != kept._array.data.ctypes.data
    np.testing.assert_array_equal(np.asarray(kept), np.arange(4.0) + 1.0)


def test_donation_is_by_argument(card: StandIn) -> None:
    """Of pytrees with leaves that are no arrays."""
    source = cg.function(lambda x: x + 1.0, engine="cuda")
    a, b, c = (source(np.ones(2)) for _ in range(3))
    step = cg.function(lambda name, p, q: {k: v + q for k, v in p.items()}, engine="cuda", donate_argnums=1)
    step("name", {"a": a, "b": b}, c)
    assert (a.is_donated, b.is_donated, c.is_donated) == (True, True, False)


@pytest.mark.parametrize("lend", [lambda x: memory_at(x.__cuda_array_interface__), lambda x: x.__dlpack__()])
def test_lent_arrays_are_not_overwritten(card: StandIn, lend: Any) -> None:
    """By the interface, whose holder has the address alone, or by DLPack."""
    given = cg.function(lambda x: x + 1.0, engine="cuda")(np.arange(4.0))
    memory = given._array.data
    view = lend(given)
    cg.function(written, engine="cuda", donate_argnums=(0,))(given)
    np.testing.assert_array_equal(memory, np.arange(4.0) + 1.0)
    del view


def test_operators_compute_on_the_card(card: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    def several(x: Any) -> list[Any]:
        moved = [x[1, ::2], x.reshape(3, 2), x.astype("f4")]
        return [x * 2 + 1, 1.0 - x, np.sin(x), np.sum(x, axis=0), *moved, x @ x.reshape(3, 2)]

    y = np.arange(6.0).reshape(2, 3)
    x = cg.function(lambda x: x * 1.0, engine="cuda")(y)
    monkeypatch.setattr(card, "read", None)
    results, expected = several(x), several(y)
    for found, its in zip(results, expected, strict=True):
        assert isinstance(found, DeviceArray) and found.dtype == its.dtype
        np.testing.assert_array_equal(np.asarray(found._array.data), its)


def test_numbers_do_not_make_new_graphs(card: StandIn) -> None:
    x = cg.function(lambda x: x * 1.0, engine="cuda")(np.ones(3))
    _ = x * 0.5
    texts = len(card.texts)
    _ = x * 0.25
    assert len(card.texts) == texts


def test_indexing_by_an_array_says_what_to_do(card: StandIn) -> None:
    x = cg.function(lambda x: x * 1.0, engine="cuda")(np.ones(3))
    with pytest.raises(TypeMismatchError, match="indexed by an array"):
        x[np.array([0, 1])]


def test_an_index_out_of_range_is_told_at_the_call(card: StandIn) -> None:
    f = cg.function(lambda x, i: x[i], engine="cuda")
    with pytest.raises(IndexOutOfRangeError, match="index 7"):
        f(np.arange(3.0), np.array([0, 7]))


class Tensor(Foreign):
    """As PyTorch's: DLPack, dtypes of its own, an interface that refuses what has a gradient."""

    def __init__(self, data: np.ndarray, dtype: str = "torch.float64") -> None:
        super().__init__(data)
        self.dtype = type("dtype", (), {"__str__": lambda _: dtype})()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


def test_torch_tensors_enter(card: StandIn) -> None:
    memory = np.arange(4.0)
    found = cg.function(written, engine="cuda")(Tensor(memory))
    assert np.asarray(found).tolist() == [-1.0, -1.0, -1.0, 3.0] and memory[0] == 0.0
    with pytest.raises(TypeMismatchError, match=r"torch\.float8_e5m2 is not supported"):
        cg.function(written, engine="cuda")(Tensor(memory, "torch.float8_e5m2"))


def test_bfloat16_enters_and_is_lent_by_dlpack_alone(card: StandIn) -> None:
    """The interface has no name for it: who asks for one must not get bytes of any dtype."""
    memory = np.arange(4.0).astype(cnp.bfloat16)
    found = cg.function(lambda x: 2 * x, engine="cuda")(Tensor(memory, "torch.bfloat16"))
    assert found.dtype == cnp.bfloat16 and found.nbytes == 8 and np.asarray(found).tolist() == [0.0, 2.0, 4.0, 6.0]
    assert (found + 1).dtype == cnp.bfloat16 and float(found[1]) == 2.0
    assert not hasattr(found, "__cuda_array_interface__") and found.__dlpack_device__() == (2, 0)
    assert hasattr(found.astype("float32"), "__cuda_array_interface__")


@pytest.mark.parametrize("make", [Foreign, Tensor])
def test_other_engines_refuse_what_lies_on_a_card(make: Any) -> None:
    with pytest.raises(UserInputError, match="lies on a GPU"):
        cg.function(written, engine="reference")(make(np.arange(4.0)))


def test_results_outlive_a_session(card: StandIn) -> None:
    with cg.memory.budget(device="1 MiB", devices={card.name: StandInDevice()}):
        found = cg.function(lambda x: np.sin(x), engine="cuda")(np.arange(3.0))
    np.testing.assert_array_equal(np.asarray(found * 1.0), np.sin(np.arange(3.0)))
    del found
