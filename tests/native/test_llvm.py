"""LLVM's functions are declared here as llvmlite declares them."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from llvmlite import binding
from llvmlite.binding import orcjit

from ctrlgrad import forks
from ctrlgrad.engines.native import llvm, objects, target
from ctrlgrad.errors import UserInputError

DECLARED = llvm.LONG | llvm.SHORT
STRUCTURES = {llvm.LinkElement: orcjit._LinkElement, llvm.SymbolAddress: orcjit._SymbolAddress}


def kind_of(declared: Any) -> Any:
    """The kind of an argument: a number by its bytes and sign, a text, a place for a text, a table, or an address."""
    if declared in (ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p)):
        return declared
    target = getattr(declared, "_type_", None)
    if isinstance(target, type) and issubclass(target, ctypes.Structure) and getattr(target, "_fields_", None):
        return [(name, kind_of(kind)) for name, kind in target._fields_]
    return "address" if declared is ctypes.c_void_p or isinstance(target, type) else declared


@pytest.mark.parametrize("name", DECLARED)
def test_a_function_is_declared_as_llvmlite_declares_it(name: str) -> None:
    result, *arguments = DECLARED[name]
    theirs = getattr(binding.ffi.lib, f"LLVMPY_{name}")
    # Where llvmlite declares no arguments, the function has none or takes objects that convert themselves.
    assert theirs.argtypes is None or [kind_of(x) for x in arguments] == [kind_of(x) for x in theirs.argtypes]
    # Where llvmlite declares no result, ctypes assumes an integer, and the function has none.
    assert kind_of(result or ctypes.c_int) == kind_of(theirs.restype)


def test_a_difference_in_a_declaration_is_seen() -> None:
    kinds = [ctypes.c_int, ctypes.c_size_t, ctypes.c_bool, ctypes.c_char_p, ctypes.c_void_p, llvm.TEXT]
    kinds += [ctypes.POINTER(x) for x in STRUCTURES]
    found = [repr(kind_of(x)) for x in kinds]
    assert len(set(found)) == len(kinds)
    assert all(kind_of(ctypes.POINTER(a)) == kind_of(ctypes.POINTER(b)) for a, b in STRUCTURES.items())


FORKS = """
import os
import ctrlgrad as cg
from ctrlgrad import forks
from ctrlgrad.engines.native import llvm, objects, target
from ctrlgrad.errors import UserInputError

loaded = []

def twice(x):
    child = os.fork()
    if child == 0:
        loaded.append(llvm.functions.cache_info().currsize)
        os._exit(0 if loaded == [1] and float(cg.function(lambda x: x + x)(1.5)) == 3.0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return x + x

print(float(cg.function(twice)(2.0)))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_a_process_that_is_forked_while_a_function_is_traced_has_the_whole_library(tmp_path: Path) -> None:
    environment = {**os.environ, "CTRLGRAD_CACHE_DIR": str(tmp_path), "CTRLGRAD_QUICK_CODE": "1"}
    found = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, env=environment)
    assert found.stdout.strip() == "4.0", found.stderr


def test_texts_that_llvm_gives_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts that LLVM allocates are freed. Found: the text of a check that finds no fault was kept for every module."""
    target.host()
    calls, given, back = llvm.functions(), [], []
    verify, dispose = calls.VerifyModule, calls.DisposeString

    def verified(module: Any, problem: Any) -> Any:
        found = verify(module, problem)
        given.append(ctypes.cast(problem._obj, ctypes.c_void_p).value)
        return found

    def disposed(text: Any) -> None:
        back.append(ctypes.cast(text, ctypes.c_void_p).value)
        dispose(text)

    monkeypatch.setattr(calls, "VerifyModule", verified)
    monkeypatch.setattr(calls, "DisposeString", disposed)
    assert target.compiled("define void @nothing() {\n  ret void\n}\n")
    assert given == back and all(given)
    wrong = "define i64 @wrong() {\n  %a = add i64 %b, 1\n  %b = add i64 %a, 1\n  ret i64 %b\n}\n"
    with pytest.raises(RuntimeError, match="does not dominate"):
        target.compiled(wrong)
    assert given == back and len(given) == 2


def test_a_fork_waits_for_what_llvm_is_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork waits for LLVM: a lock held at the fork would never be released in the child."""
    calls, found = llvm.functions(), []
    for name in ("ParseAssembly", "TargetMachineEmitToMemory", "LLJIT_Link"):
        call = getattr(calls, name)
        monkeypatch.setattr(
            calls, name, lambda *given, n=name, f=call: (found.append((n, bool(forks._busy))), f(*given))[1]
        )
    code = target.compiled("define void @nothing() nounwind {\n  ret void\n}\n")
    objects.loaded(objects.ObjectCode(("nothing",), code))
    assert found == [("ParseAssembly", True), ("TargetMachineEmitToMemory", True), ("LLJIT_Link", True)]


WIDE = target.Target("x86_64-unknown-linux-gnu", "sapphirerapids", "+avx,+avx2,+avx512bw,+avx512f,+fma,+sse4.2,-xop")


def test_a_processor_can_be_told_to_have_narrower_vectors() -> None:
    found = {bits: target.narrowed(WIDE, bits) for bits in ("128", "256", "512")}
    assert found["512"] == WIDE
    assert found["256"].features == "+avx,+avx2,-avx512bw,-avx512f,+fma,+sse4.2,-xop"
    assert found["128"].features == "-avx,-avx2,-avx512bw,-avx512f,-fma,+sse4.2,-xop"
    assert [8 * x.vector_bytes for x in found.values()] == [128, 256, 512]


@pytest.mark.parametrize("bits", ["512", "64", "", "wide"])
def test_vectors_that_the_processor_does_not_have_are_refused(bits: str) -> None:
    with pytest.raises(UserInputError, match="not a width of vectors of this processor") as error:
        target.narrowed(target.narrowed(WIDE, "256"), bits)
    assert "128 or 256" in str(error.value)
