"""A prepared kernel as CUDA C++: where each element lies, around the statements that compute it.

Shapes and strides are numbers in the text. What moves is found by the words that the card has: `words[0]` counts the
iterations, `words[k]` is an address or a number as it is in the first of them.
"""

from __future__ import annotations

import math

from ctrlgrad.engines.cuda.kernel import Parameter
from ctrlgrad.engines.cuda.prepared.model import Access, KernelSpec, Shape

NAME = "prepared"
# Threads of a block, and the most blocks: a thread goes on with the elements behind those of the whole grid.
BLOCK, MOST_BLOCKS = 128, 1 << 16


def grid_of(spec: KernelSpec) -> int:
    """The blocks of a launch."""
    return min(-(-spec.threads // BLOCK), MOST_BLOCKS)


def source(spec: KernelSpec) -> str:
    """The text of a kernel named `NAME`: its parameters are the words' address, and those of its accesses in order."""
    text = spec.text
    named = [*zip(text.inputs, spec.inputs, strict=True), *zip(text.outputs, spec.outputs, strict=True)]
    parameters = ["long long* words"] if spec.is_moving else []
    parameters += [_parameter(p, access) for p, access in named if access.has_parameter]
    outer = len(spec.shape) - spec.reduced
    lines = ["const long long iteration = words[0];"] * spec.is_moving
    lines += [f"char* const p_{p.name} = {_address(p, access)};" for p, access in named if access.strides is not None]
    lines += ["const long long stride = (long long)blockDim.x * gridDim.x;"]
    first = "(long long)blockIdx.x * blockDim.x + threadIdx.x"
    lines += [f"for (long long i = {first}; i < {spec.threads}LL; i += stride) {{"]
    lines += _indices("i", spec.shape[:outer], 0)
    loads = [_load(p, access, len(spec.shape)) for p, access in zip(text.inputs, spec.inputs, strict=True)]
    if spec.reduced:
        count = math.prod(spec.shape[outer:])
        lines += [f"{p.dtype} {p.name} = 0;" for p in text.outputs]
        lines += [f"for (long long r = 0; r < {count}LL; r++) {{", *_indices("r", spec.shape[outer:], outer)]
        lines += [*loads, text.operation, "}"]
    else:
        lines += [*loads, *(f"{p.dtype} {p.name};" for p in text.outputs), text.operation]
    stores = zip(text.outputs, spec.outputs, strict=True)
    lines += [f"*({p.dtype}*){_element(p, access)} = {p.name};" for p, access in stores]
    head = f'extern "C" __global__ void {NAME}({", ".join(parameters)}) {{'
    return "\n".join([text.preamble, head, *lines, "}", "}", ""])


def _parameter(p: Parameter, access: Access) -> str:
    # A number's parameter is its own value, an array's its address.
    return f"const {p.dtype} n_{p.name}" if access.strides is None else f"char* b_{p.name}"


def _moved(access: Access) -> str:
    return f"(words[{access.word}] + iteration * {access.step}LL)"


def _address(p: Parameter, access: Access) -> str:
    if access.word is None:
        return f"b_{p.name}"
    return f"b_{p.name} + {_moved(access)}" if access.has_parameter else f"(char*){_moved(access)}"


def _load(p: Parameter, access: Access, rank: int) -> str:
    if access.strides is not None:
        return f"const {p.dtype} {p.name} = *(const {p.dtype}*){_element(p, access)};"
    value = f"n_{p.name}" if access.word is None else f"({p.dtype}){_moved(access)}"
    return f"const {p.dtype} {p.name} = {value};"


def _element(p: Parameter, access: Access) -> str:
    assert access.strides is not None
    terms = [f" + i{axis} * {stride}LL" for axis, stride in enumerate(access.strides) if stride]
    return f"(p_{p.name}{''.join(terms)})"


def _indices(flat: str, shape: Shape, first: int) -> list[str]:
    """The index along each axis, from the number of the element."""
    lines: list[str] = []
    below = 1
    for axis in reversed(range(len(shape))):
        place = flat if below == 1 else f"({flat} / {below}LL)"
        lines.append(f"const long long i{first + axis} = {place}{'' if not axis else f' % {shape[axis]}LL'};")
        below *= shape[axis]
    return lines


__all__ = ["BLOCK", "MOST_BLOCKS", "NAME", "grid_of", "source"]
