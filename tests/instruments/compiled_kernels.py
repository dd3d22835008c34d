"""Kernels' text by the processor's C++ compiler: the threads of a block are coroutines, which wait at barriers.

Between barriers threads run one after the other, the first or the last one first: a result that depends on that is of
a kernel that lacks a barrier. If a thread ends while other threads wait, the call raises. Memory that threads share is
filled with a pattern before each block.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ctrlgrad.engines.cuda.kernel import NAME, Spec, source

HALF = """\
static unsigned short half_bits(double x) { _Float16 h = x; unsigned short b; memcpy(&b, &h, 2); return b; }
static unsigned short half_bits(float x) { _Float16 h = x; unsigned short b; memcpy(&b, &h, 2); return b; }
static float half_value(unsigned short b) { _Float16 h; memcpy(&h, &b, 2); return h; }
"""
"""What the preamble has in CUDA's assembly."""

_CARD = """\
#include <cmath>
#include <cstring>
#include <functional>
#include <new>
#include <ucontext.h>
#include <utility>
using namespace std;
#define __device__
#define __global__
extern "C" void cudaGraphSetConditional(unsigned long long handle, unsigned value) {
    *(unsigned long long*)handle = value;
}
static unsigned long long atomicCAS(unsigned long long* word, unsigned long long before, unsigned long long after) {
    const unsigned long long found = *word;
    if (found == before) *word = after;
    return found;
}
#define __shared__ static __attribute__((section("shared_memory")))
extern char __start_shared_memory, __stop_shared_memory;
static char some __attribute__((section("shared_memory"), used));

static struct { unsigned x; } blockIdx, threadIdx, blockDim, gridDim;
static const int MOST = 256, STACK = 1 << 15;
static ucontext_t scheduler, threads[MOST];
static char stacks[MOST][STACK];
static bool over[MOST];
static function<void()> body;

static void __syncthreads() {
    const unsigned mine = threadIdx.x;
    swapcontext(&threads[mine], &scheduler);
    threadIdx.x = mine;
}
static void thread() {
    const unsigned mine = threadIdx.x;
    body();
    over[mine] = true;
}
// Whether the threads of a block all come to the same barriers.
static bool block(bool backwards) {
    memset(&__start_shared_memory, 0xA5, &__stop_shared_memory - &__start_shared_memory);
    const int count = blockDim.x;
    for (int t = 0; t < count; t++) {
        over[t] = false;
        getcontext(&threads[t]);
        threads[t].uc_stack.ss_sp = stacks[t];
        threads[t].uc_stack.ss_size = STACK;
        threads[t].uc_link = &scheduler;
        makecontext(&threads[t], thread, 0);
    }
    for (int left = count; left;) {
        int ended = 0;
        for (int n = 0; n < count; n++) {
            const int t = backwards ? count - 1 - n : n;
            threadIdx.x = t;
            swapcontext(&scheduler, &threads[t]);
            ended += over[t];
        }
        if (ended && ended != count) return false;
        left -= ended;
    }
    return true;
}
template <class... A, size_t... I> int called(
    void (*kernel)(A...), void** given, int blocks, int count, bool backwards, index_sequence<I...>) {
    gridDim.x = blocks, blockDim.x = count;
    body = [=] { kernel(*(typename remove_const<A>::type*)given[I]...); };
    for (int b = 0; b < blocks; b++) {
        blockIdx.x = backwards ? blocks - 1 - b : b;
        if (!block(backwards)) return 1;
    }
    return 0;
}
template <class... A> int called(void (*kernel)(A...), void** given, int blocks, int count, bool backwards) {
    return called(kernel, given, blocks, count, backwards, index_sequence_for<A...>());
}
"""

Called = Callable[[ctypes.c_void_p, int, int, bool], bool]
"""Takes the address of the parameters' addresses, blocks, threads, and whether the last ones run first.

Whether all threads of a block have come to the same barriers."""


def written(specs: Sequence[Spec]) -> str:
    """All kernels, each in a namespace of its own."""
    parts = []
    for number, spec in enumerate(specs):
        text = source(spec).replace('extern "C" __global__', "__global__")
        parts += [f"namespace n{number} {{", text, "}"]
    return "\n".join(parts)


def compiled(specs: Sequence[Spec], folder: Path, changed: Callable[[str], str] = lambda text: text) -> list[Called]:
    """The kernels as functions. `changed` may change their text."""
    calls = [
        f'extern "C" int call_{n}(void** given, int blocks, int count, int backwards)'
        f" {{ return called(n{n}::{NAME}, given, blocks, count, backwards); }}"
        for n in range(len(specs))
    ]
    text = "\n".join([_CARD, HALF, changed(written(specs)), *calls])
    (folder / "kernels.cpp").write_text(text, encoding="utf-8")
    command = ["g++", "-std=c++14", "-O1", "-fwrapv", "-ffp-contract=off", "-w", "-shared", "-fPIC"]
    subprocess.run([*command, str(folder / "kernels.cpp"), "-o", str(folder / "kernels.so")], check=True, timeout=300)
    loaded = ctypes.CDLL(str(folder / "kernels.so"))

    def function(number: int) -> Called:
        call = getattr(loaded, f"call_{number}")

        return lambda given, blocks, threads, backwards: not call(given, blocks, threads, int(backwards))

    return list(map(function, range(len(specs))))


def call(function: Called, parameters: Sequence[bytes], blocks: int, threads: int, backwards: bool) -> bool:
    """Call a kernel with parameters as they lie in memory."""
    memory = np.frombuffer(b"".join(parameters), np.uint8)
    pointers = memory.ctypes.data + np.cumsum([0, *map(len, parameters)])
    return function(ctypes.c_void_p(pointers.ctypes.data), blocks, threads, backwards)


__all__ = ["HALF", "Called", "Spec", "call", "compiled", "written"]
