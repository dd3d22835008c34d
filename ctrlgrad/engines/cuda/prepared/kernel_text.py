"""A prepared kernel as CUDA C++: the addresses of elements, around the statements that compute them.

Shapes and strides are numbers in the text. Moving addresses and numbers come from words on the card: `words[0]`
counts the iterations; other words count passes of inner regions, or hold an address or a number from a run's
beginning. The numbers of these words, and the step for each count, are parameters: kernels that differ in them
alone are one.
"""

from __future__ import annotations

from ctrlgrad.engines.cuda.arguments import NAME, Access, address, declared, number
from ctrlgrad.engines.cuda.indexing.kernel_text import source as index_source
from ctrlgrad.engines.cuda.indexing.model import IndexSpec
from ctrlgrad.engines.cuda.kernel import Parameter
from ctrlgrad.engines.cuda.prepared.model import KernelSpec
from ctrlgrad.engines.cuda.prepared.operands import Shape
from ctrlgrad.engines.cuda.reductions.kernel_text import source as reduction_source
from ctrlgrad.engines.cuda.reductions.model import ReductionSpec

# Stores the condition of a graph. NVRTC has no header that declares it.
_SET_CONDITION = 'extern "C" __device__ void cudaGraphSetConditional(unsigned long long handle, unsigned int value);'
# Threads of a block, and the most blocks: a thread goes on with the elements behind those of the whole grid.
BLOCK, MOST_BLOCKS = 128, 1 << 16


def grid_of(spec: KernelSpec) -> int:
    """The blocks of a launch."""
    return min(-(-spec.threads // BLOCK), MOST_BLOCKS)


def source(spec: KernelSpec | ReductionSpec | IndexSpec) -> str:
    """The text of a kernel named `NAME`: its parameters are the words' address, and those of its accesses in order."""
    if isinstance(spec, ReductionSpec):
        return reduction_source(spec)
    if not isinstance(spec, KernelSpec):
        return index_source(spec)
    text = spec.text
    named = [*zip(text.inputs, spec.inputs, strict=True), *zip(text.outputs, spec.outputs, strict=True)]
    parameters = ["long long* words"] if spec.is_moving else []
    inputs = len(text.inputs)
    parameters += [text for p, access in named[:inputs] for text in declared(p, access)]
    parameters += [text for p, access in named[inputs:] for text in _target(p, access)]
    lines = ["const long long iteration = words[0];"] * spec.is_moving
    lines += [f"char* const p_{p.name} = {address(p, access)};" for p, access in named if access.strides is not None]
    lines += ["const long long stride = (long long)blockDim.x * gridDim.x;"]
    first = "(long long)blockIdx.x * blockDim.x + threadIdx.x"
    lines += [f"for (long long i = {first}; i < {spec.threads}LL; i += stride) {{"]
    lines += _indices("i", spec.shape)
    lines += [_load(p, access) for p, access in zip(text.inputs, spec.inputs, strict=True)]
    lines += [*(f"{p.dtype} {p.name};" for p in text.outputs), text.operation]
    stores = zip(text.outputs, spec.outputs, strict=True)
    lines += [_store(p, access) for p, access in stores]
    preamble = text.preamble + (_SET_CONDITION if any(access.strides is None for access in spec.outputs) else "")
    head = f'extern "C" __global__ void {NAME}({", ".join(parameters)}) {{'
    return "\n".join([preamble, head, *lines, "}", "}", ""])


def _target(p: Parameter, access: Access) -> list[str]:
    return [f"const unsigned long long h_{p.name}"] if access.strides is None else declared(p, access)


def _store(p: Parameter, access: Access) -> str:
    if access.strides is None:
        return f"cudaGraphSetConditional(h_{p.name}, {p.name});"
    return f"*({p.dtype}*){_element(p, access)} = {p.name};"


def _load(p: Parameter, access: Access) -> str:
    if access.strides is not None:
        return f"const {p.dtype} {p.name} = *(const {p.dtype}*){_element(p, access)};"
    return f"const {p.dtype} {p.name} = {number(p, access)};"


def _element(p: Parameter, access: Access) -> str:
    assert access.strides is not None
    terms = [f" + i{axis} * {stride}LL" for axis, stride in enumerate(access.strides) if stride]
    return f"(p_{p.name}{''.join(terms)})"


def _indices(flat: str, shape: Shape) -> list[str]:
    """The index along each axis, from the number of the element."""
    lines: list[str] = []
    below = 1
    for axis in reversed(range(len(shape))):
        place = flat if below == 1 else f"({flat} / {below}LL)"
        lines.append(f"const long long i{axis} = {place}{'' if not axis else f' % {shape[axis]}LL'};")
        below *= shape[axis]
    return lines
