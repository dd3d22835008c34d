"""An `Entry` of the native engine as a custom call of XLA's typed foreign functions, on the processor.

XLA calls a handler with a call frame, whose layout its C API fixes (`xla/ffi/api/c_api.h`, version 0). One handler
serves all entries; which one is meant is an attribute of the call, the address of its words. That is good in one
process only: a second attribute, a random number, keeps compiled programs that hold it out of reach of JAX's cache on
disk for another one. Who lowers a call keeps the entry alive as long as the compiled program.
"""

from __future__ import annotations

import ctypes
import functools
import re
import secrets
import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ctrlgrad.engines.native import objects, target
from ctrlgrad.engines.native.entry import MESSAGE_BYTES, routines

_NAME = "ctrlgrad_entry"
_PROCESS = np.int64(secrets.randbits(63))
_LOCK = threading.Lock()

# Offsets in XLA's structures, which all begin with their size and a list of extensions.
_EXTENSION, _API, _STAGE, _ARGS, _RETS, _ATTRS = 8, 16, 32, 40, 80, 120
_COUNT, _ITEMS = 16, 32  # of `XLA_FFI_Args` and `XLA_FFI_Rets`
_ATTR_ITEMS = 40
_BUFFER_DATA, _SCALAR_VALUE = 24, 8
_EXTENSION_TYPE, _METADATA, _METADATA_VERSION = 8, 24, 24
_ERROR_CREATE = 48
_IS_METADATA, _EXECUTE, _INTERNAL = 1, 3, 13


def _text(version: int) -> str:
    """The handler; `version` is the API's two numbers in one word."""
    return f"""
declare i64 @cg_enter(ptr, ptr, ptr)

define internal void @collect(ptr %call, i64 %which, ptr %addresses) nounwind {{
start:
  %list = getelementptr i8, ptr %call, i64 %which
  %count.p = getelementptr i8, ptr %list, i64 {_COUNT}
  %count = load i64, ptr %count.p
  %items.p = getelementptr i8, ptr %list, i64 {_ITEMS}
  %items = load ptr, ptr %items.p
  br label %head
head:
  %k = phi i64 [ 0, %start ], [ %next, %one ]
  %ends = icmp eq i64 %k, %count
  br i1 %ends, label %done, label %one
one:
  %item.p = getelementptr ptr, ptr %items, i64 %k
  %item = load ptr, ptr %item.p
  %data.p = getelementptr i8, ptr %item, i64 {_BUFFER_DATA}
  %data = load ptr, ptr %data.p
  %place = getelementptr ptr, ptr %addresses, i64 %k
  store ptr %data, ptr %place
  %next = add i64 %k, 1
  br label %head
done:
  ret void
}}

define ptr @cg_xla(ptr %call) nounwind {{
start:
  %extension.p = getelementptr i8, ptr %call, i64 {_EXTENSION}
  %extension = load ptr, ptr %extension.p
  %is_extended = icmp ne ptr %extension, null
  br i1 %is_extended, label %extended, label %staged
extended:
  %type.p = getelementptr i8, ptr %extension, i64 {_EXTENSION_TYPE}
  %type = load i32, ptr %type.p
  %is_question = icmp eq i32 %type, {_IS_METADATA}
  br i1 %is_question, label %question, label %staged
question:
  %metadata.p = getelementptr i8, ptr %extension, i64 {_METADATA}
  %metadata = load ptr, ptr %metadata.p
  %version.p = getelementptr i8, ptr %metadata, i64 {_METADATA_VERSION}
  store i64 {version}, ptr %version.p
  ret ptr null
staged:
  %stage.p = getelementptr i8, ptr %call, i64 {_STAGE}
  %stage = load i32, ptr %stage.p
  %executes = icmp eq i32 %stage, {_EXECUTE}
  br i1 %executes, label %execute, label %nothing
nothing:
  ret ptr null
execute:
  %args.p = getelementptr i8, ptr %call, i64 {_ARGS + _COUNT}
  %args = load i64, ptr %args.p
  %rets.p = getelementptr i8, ptr %call, i64 {_RETS + _COUNT}
  %rets = load i64, ptr %rets.p
  %all = add i64 %args, %rets
  %addresses = alloca ptr, i64 %all
  call void @collect(ptr %call, i64 {_ARGS}, ptr %addresses)
  %results = getelementptr ptr, ptr %addresses, i64 %args
  call void @collect(ptr %call, i64 {_RETS}, ptr %results)
  %attrs.p = getelementptr i8, ptr %call, i64 {_ATTRS + _ATTR_ITEMS}
  %attrs = load ptr, ptr %attrs.p
  %scalar = load ptr, ptr %attrs
  %value.p = getelementptr i8, ptr %scalar, i64 {_SCALAR_VALUE}
  %value = load ptr, ptr %value.p
  %entry = load ptr, ptr %value
  %message = alloca [{MESSAGE_BYTES} x i8]
  %failed = call i64 @cg_enter(ptr %entry, ptr %addresses, ptr %message)
  %is_error = icmp ne i64 %failed, 0
  br i1 %is_error, label %error, label %fine
fine:
  ret ptr null
error:
  %given = alloca [4 x i64]
  store i64 28, ptr %given
  %given.extension = getelementptr i64, ptr %given, i64 1
  store ptr null, ptr %given.extension
  %given.message = getelementptr i64, ptr %given, i64 2
  store ptr %message, ptr %given.message
  %given.code = getelementptr i64, ptr %given, i64 3
  store i64 {_INTERNAL}, ptr %given.code
  %api.p = getelementptr i8, ptr %call, i64 {_API}
  %api = load ptr, ptr %api.p
  %create.p = getelementptr i8, ptr %api, i64 {_ERROR_CREATE}
  %create = load ptr, ptr %create.p
  %made = call ptr %create(ptr %given)
  ret ptr %made
}}
"""


def _version() -> int | None:
    """The version of XLA's C API that is installed, as two 32-bit numbers in a word; None for one that is not 0.x."""
    if not hasattr(jax, "ffi"):
        return None
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    try:
        found = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header.read_text()))
    except OSError:
        return None
    return int(found["MINOR"]) << 32 if found.get("MAJOR") == "0" and "MINOR" in found else None


@functools.cache
def _registered() -> bool:
    version = _version()
    if version is None:
        return False
    text = _text(version)
    make = lambda: objects.ObjectCode(("cg_xla",), target.compiled(text))
    code = objects.library(objects.key_of([text], []), make, {"cg_enter": routines()["cg_enter"]}).kept()
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    jax.ffi.register_ffi_target(_NAME, capsule(code["cg_xla"], None, None), platform="cpu")
    return True


def has_typed_calls() -> bool:
    """Whether compiled programs of JAX can call entries; at the first call the handler is made known to XLA."""
    with _LOCK:
        return _registered()


def call_entry(ctx: Any, entry: Any, *operands: Any) -> Any:
    """The results of an entry in a program that JAX is lowering."""
    lower = jax.ffi.ffi_lowering(_NAME)
    return lower(ctx, *operands, entry=np.int64(entry.address), process=_PROCESS)
