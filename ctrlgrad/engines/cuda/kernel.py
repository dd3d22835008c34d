"""Kernels in CUDA C++: their parameters and launches, types and functions, and expressions of the plan.

Elements are read and written by the code around a text (`reductions`, `indexing`).
"""

from __future__ import annotations

import functools
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ctrlgrad.dtypes import BFLOAT16, dtype_kind
from ctrlgrad.ir import Node, Trait
from ctrlgrad.plan.elementary.table import Elementary, elementary
from ctrlgrad.plan.elementwise import Operand, elementwise_expression, has_expression, may_fail
from ctrlgrad.plan.expression import Expression, ExpressionBuilder, Instruction
from ctrlgrad.plan.lowering.state import parts_of
from ctrlgrad.plan.model import Array, Kernel, Write
from ctrlgrad.plan.model import Operand as Read

# The dtypes of C that kernels compute with, and their C types: in kernels they go by NumPy's names.
C_TYPES: dict[str, str] = {
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned int",
    "uint64": "unsigned long long",
    "float32": "float",
    "float64": "double",
}

_DEFINITIONS = """
template <class A, class B> __device__ inline auto np_select(bool c, A a, B b) -> decltype(c ? A() : B()) {
    return c ? a : b;
}
template <class T> __device__ inline T np_abs(T x) { return x < 0 ? T(-x) : x; }
__device__ inline float np_abs(float x) { return fabsf(x); }
__device__ inline double np_abs(double x) { return fabs(x); }
__device__ inline float np_fma(float a, float b, float c) { return fmaf(a, b, c); }
__device__ inline double np_fma(double a, double b, double c) { return fma(a, b, c); }
// Towards zero.
template <class T> __device__ inline T np_quotient(T a, T b) { return T(a / b); }
template <class T> __device__ inline T np_remainder(T a, T b) { return T(a % b); }
// Floats beyond an integer's range become the least or the largest one, and NaN becomes 0.
template <class T, class F> __device__ inline T np_saturated(F x, T low, T high) {
    return x != x ? T(0) : x <= F(low) ? low : x >= F(high) ? high : T(x);
}
template <class To, class From> __device__ inline To np_bits(const From& x) {
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To found;
    for (int k = 0; k < int(sizeof(To)); k++)
        reinterpret_cast<unsigned char*>(&found)[k] = reinterpret_cast<const unsigned char*>(&x)[k];
    return found;
}
"""


def _bits_of(name: str) -> str:
    return f"template <class T> __device__ inline {name} bits_{name}(T x) {{ return np_bits<{name}>(x); }}\n"


def _saturated(name: str) -> str:
    limits = np.iinfo(name)
    # C++ has no literal of the least number.
    low = f"-{limits.max}ll - 1" if limits.min else "0"
    ends = f"{name}({low}), {name}({limits.max}{'ll' if limits.min else 'ull'})"
    return f"template <class F> __device__ inline {name} saturated_{name}(F x) {{ return np_saturated(x, {ends}); }}\n"


# Types that the compiler lacks where it is given no headers: floats of 16 bits, and complex numbers.
_HALF = """
#ifdef __CUDACC__
__device__ inline unsigned short half_bits(float x) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
__device__ inline unsigned short half_bits(double x) {
    unsigned short bits;
    asm("cvt.rn.f16.f64 %0, %1;" : "=h"(bits) : "d"(x));
    return bits;
}
__device__ inline float half_value(unsigned short bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
#endif
class float16 {
    unsigned short data;
public:
    __device__ float16() {}
    __device__ float16(float x) : data(half_bits(x)) {}
    explicit __device__ float16(double x) : data(half_bits(x)) {}
    __device__ operator float() const { return half_value(data); }
};
""" + _bits_of("float16")
# The upper half of a float, of two that are as near the even one: half a unit is added to the bits, and what goes over
# is carried. A NaN, whose bits might be carried too far, keeps its sign alone. So it is on the processor.
_BFLOAT16 = (
    """
class bfloat16 {
    unsigned short data;
public:
    __device__ bfloat16() {}
    __device__ operator float() const { return np_bits<float>((unsigned int)data << 16); }
};
"""
    + _bits_of("bfloat16")
    + """
__device__ inline bfloat16 np_bfloat16(float x) {
    const unsigned int bits = np_bits<unsigned int>(x), upper = bits >> 16;
    const unsigned int rounded = (bits + 0x7fff + (upper & 1)) >> 16;
    return bits_bfloat16((unsigned short)(x != x ? (upper & 0x8000) | 0x7fc0 : rounded));
}
"""
)
_COMPLEX = """
template <class T> class complex {
    T re, im;
public:
    __device__ complex() {}
    __device__ complex(T re, T im) : re(re), im(im) {}
    __device__ T real() const { return re; }
    __device__ T imag() const { return im; }
};
typedef complex<float> complex64;
typedef complex<double> complex128;
template <class T> __device__ inline T np_real(const complex<T>& z) { return z.real(); }
template <class T> __device__ inline T np_imag(const complex<T>& z) { return z.imag(); }
"""


def preamble(text: str) -> str:
    """Definitions that a kernel's text needs, without the elementary functions."""
    half = _HALF if re.search("(?<!b)float16", text) else ""
    bfloat16 = _BFLOAT16 if "bfloat16" in text else ""
    return PREAMBLE + half + bfloat16 + (_COMPLEX if "complex" in text else "")


PREAMBLE = (
    "".join(f"typedef {c} {name};\n" for name, c in C_TYPES.items())
    + _DEFINITIONS
    + "".join(map(_bits_of, C_TYPES))
    + "".join(_saturated(name) for name in C_TYPES if "int" in name)
)

# Whole numbers up to here are written into a kernel; larger ones are passed to it.
_LARGEST_LITERAL = 2**31 - 1

_HALF_DTYPES, _FLOAT32, _FLOAT64 = (np.dtype(f"f{size}") for size in (2, 4, 8))

_OPERATORS = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
    "equal": "==",
    "not_equal": "!=",
    "and": "&",
    "or": "|",
    "xor": "^",
    "shift_right": ">>",
}
_CALLS = {
    "remainder": "np_remainder",
    "fma": "np_fma",
    "sqrt": "sqrt",
    "abs": "np_abs",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "rint": "rint",
    "copysign": "copysign",
}

Leaf = Callable[[Instruction], str]
"""The text of a leaf that is no constant."""


@dataclass(frozen=True)
class Statements:
    """An expression's text: statements, a line each, the names of its outputs, and the functions that it calls."""

    lines: tuple[str, ...]
    outputs: tuple[str, ...]
    functions: tuple[Elementary, ...]


def statements(expression: Expression, leaf: Leaf) -> Statements:
    """The statements that compute an expression's outputs, and none besides."""
    instructions = expression.instructions
    needed = set(expression.outputs)
    for number in range(len(instructions) - 1, -1, -1):
        if number in needed:
            needed.update(instructions[number].args)
    lines: list[str] = []
    names: dict[int, str] = {}
    functions: dict[tuple[str, np.dtype], Elementary] = {}
    for number in sorted(needed):
        instruction = instructions[number]
        if instruction.op == "constant":
            names[number] = literal(instruction.value, instruction.dtype)
        elif instruction.op in ("load", "scalar", "index", "argument"):
            names[number] = leaf(instruction)
        else:
            dtypes = [instructions[a].dtype for a in instruction.args]
            if instruction.op == "call":
                functions.setdefault((instruction.value, dtypes[0]), elementary(instruction.value, dtypes[0]))
            text = _operation(instruction, [names[a] for a in instruction.args], dtypes)
            names[number] = f"v{len(lines)}"
            lines.append(f"{instruction.dtype.name} {names[number]} = {text};")
    return Statements(tuple(lines), tuple(names[o] for o in expression.outputs), tuple(functions.values()))


def _operation(instruction: Instruction, names: list[str], dtypes: list[np.dtype]) -> str:
    op, dtype = instruction.op, instruction.dtype
    if op == "select":
        return f"np_select({', '.join(names)})"
    if op == "bits":
        return f"bits_{dtype.name}({names[0]})"
    if op != "convert" or dtype not in (_FLOAT32, _FLOAT64):
        # Floats of 16 bits are computed with as single ones, and rounded: to half floats by what initialises them.
        names = [
            f"float32({x})" if its in (_HALF_DTYPES, BFLOAT16) else x for x, its in zip(names, dtypes, strict=True)
        ]
    text = _computation(instruction, names, dtypes)
    return rounded(dtype.name, text) if dtype == BFLOAT16 else text


def rounded(dtype: str, text: str) -> str:
    """A number of the dtype, of one that it is computed in, or of its parts."""
    return f"np_bfloat16({text})" if dtype == BFLOAT16.name else f"{dtype}({text})"


def _computation(instruction: Instruction, names: list[str], dtypes: list[np.dtype]) -> str:
    op, dtype = instruction.op, instruction.dtype
    if op in _OPERATORS:
        return f"{names[0]} {_OPERATORS[op]} {names[1]}"
    if op == "negative":
        return f"-{names[0]}"
    if op == "divide":
        return f"{names[0]} / {names[1]}" if dtype_kind(dtype) == "f" else f"np_quotient({names[0]}, {names[1]})"
    if op == "not":
        return f"{names[0]} == false" if dtype.kind == "b" else f"~{names[0]}"
    if op == "shift_left":
        unsigned = f"uint{8 * dtype.itemsize}"
        return f"{dtype.name}({unsigned}({names[0]}) << {unsigned}({names[1]}))"
    if op == "convert":
        if dtype == BFLOAT16:
            # Rounded to a float first, as in JAX.
            return names[0] if dtypes[0] in (_FLOAT32, _HALF_DTYPES) else f"float32({names[0]})"
        if dtype == _HALF_DTYPES and dtype_kind(dtypes[0]) != "f":
            return f"float16(float32({names[0]}))"
        if dtype_kind(dtype) in "iu" and dtype_kind(dtypes[0]) == "f":
            return f"saturated_{dtype.name}({names[0]})"
        return f"{names[0]} != 0" if dtype.kind == "b" else f"{dtype.name}({names[0]})"
    name = function_name(instruction.value, dtypes[0]) if op == "call" else _CALLS[op]
    return f"{name}({', '.join(names)})"


def function_name(name: str, dtype: np.dtype) -> str:
    """Name of an elementary function in kernels."""
    return f"{name}_{dtype.name}"


def literal(value: np.generic, dtype: np.dtype) -> str:
    """A constant: in C++ and in Python one number of the dtype."""
    if dtype.kind == "b":
        return "true" if bool(value) else "false"
    if dtype_kind(dtype) == "f":
        if math.isfinite(float(value)):
            return f"np_bfloat16(float32({float(value)!r}))" if dtype == BFLOAT16 else f"{dtype.name}({float(value)!r})"
        bits = int(np.asarray(value, dtype).view(f"u{dtype.itemsize}"))
        return f"bits_{dtype.name}(uint{8 * dtype.itemsize}({bits:#x}))"
    number = int(value)
    if abs(number) <= _LARGEST_LITERAL:
        return f"{dtype.name}({number})"
    # C++ has no negative literals, and none beyond a long without a letter, but in hexadecimal.
    return f"{dtype.name}({number % 2**64:#x})"


def kernel_constant(value: np.ndarray) -> tuple[np.generic, ...] | None:
    """The parts of a constant of rank 0 as kernels have it in their text; None where it is passed.

    Large numbers and those that are not finite are passed: kernels that differ in such a number share their text.
    """
    kind = value.dtype.kind
    if abs(int(value)) > _LARGEST_LITERAL if kind in "iu" else not np.isfinite(value):
        return None
    number: np.generic = value.dtype.type(value)
    return (number.real, number.imag) if kind == "c" else (number,)


def is_fusible(node: Node) -> bool:
    """Return true if a node can be part of a kernel: elementwise, and no element makes it fail."""
    if Trait.ELEMENTWISE not in node.op.traits:
        return False
    return _is_computed(node.op.name, tuple(v.tensor.dtype for v in node.operands), node.result.tensor.dtype)


@functools.cache
def _is_computed(name: str, operand_dtypes: tuple[np.dtype, ...], result_dtype: np.dtype) -> bool:
    return has_expression(name, operand_dtypes, result_dtype) and not may_fail(name, operand_dtypes)


def definitions(functions: Iterable[Elementary]) -> str:
    """The text of functions and of those that they call, each before its use."""
    ordered: dict[str, Elementary] = {}

    def put(function: Elementary) -> None:
        for inner in _called(function):
            put(inner)
        ordered.setdefault(function_name(function.name, function.dtype), function)

    for function in functions:
        put(function)
    return "".join(map(_definition, ordered.values()))


def _called(function: Elementary) -> list[Elementary]:
    found = list(_statements(function.name, function.dtype.name).functions)
    if function.library is not None and dtype_kind(function.dtype) != "f":
        found.append(elementary(function.library, function.dtype))
    return found


@functools.cache
def _statements(name: str, dtype: str) -> Statements:
    expression = elementary(name, np.dtype(dtype)).expression
    return statements(expression, lambda instruction: f"x{instruction.value}")


def _definition(function: Elementary) -> str:
    body, dtype = _statements(function.name, function.dtype.name), function.dtype.name
    result, *beyond = body.outputs
    given = [f"x{k}" for k in range(function.arity)]
    lines = list(body.lines)
    if beyond:
        assert function.library is not None
        outside = (
            function.library if dtype_kind(function.dtype) == "f" else function_name(function.library, function.dtype)
        )
        lines.append(f"if ({beyond[0]}) return {outside}({', '.join(given)});")
    head = f"{dtype} {function_name(function.name, function.dtype)}({', '.join(f'{dtype} {x}' for x in given)})"
    return "\n".join([f"__device__ inline {head} {{", *lines, f"return {result};", "}\n"])


@dataclass(frozen=True)
class Parameter:
    """One argument of a kernel: a dtype's name, as NumPy has it, and a name."""

    dtype: str
    name: str

    def __str__(self) -> str:
        return f"{self.dtype} {self.name}"


@dataclass(frozen=True)
class KernelText:
    """An elementwise kernel. `operation` is what happens for one element, in CUDA C++, a statement a line.

    `functions` are the elementary functions that it calls.
    """

    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    operation: str
    functions: tuple[Elementary, ...] = field(default=(), compare=False)

    @property
    def preamble(self) -> str:
        """Definitions of the functions that its operation calls."""
        return preamble(str(self)) + definitions(self.functions)

    def __str__(self) -> str:
        head = f"({', '.join(map(str, self.inputs))}) -> ({', '.join(map(str, self.outputs))})"
        return f"{head}\n{self.operation}"


def leaf_of(kernel: Kernel) -> Leaf:
    """Names of a kernel's inputs in its text: operands a0, a1, ..., numbers s0, ..."""

    def leaf(instruction: Instruction) -> str:
        if instruction.op == "scalar":
            return f"s{instruction.value}"
        assert instruction.op == "load" and not instruction.args
        operand, part = instruction.value
        is_complex = kernel.operands[operand].view.dtype.kind == "c"
        return f"{('np_real', 'np_imag')[part]}(a{operand})" if is_complex else f"a{operand}"

    return leaf


def element_lines(kernel: Kernel, text: Statements) -> tuple[tuple[Parameter, ...], tuple[Parameter, ...], list[str]]:
    """Of a kernel's text what it reads, what it writes of each element (o0, ...), and the lines that do."""
    inputs = [Parameter(operand.view.dtype.name, f"a{i}") for i, operand in enumerate(kernel.operands)]
    inputs += [Parameter(register.dtype.name, f"s{i}") for i, register in enumerate(kernel.numbers)]
    outputs, lines = [], []
    for i, write in enumerate(write for write in kernel.writes if write.how == "store"):
        first, *rest = (text.outputs[output] for output in write.outputs)
        lines.append(f"o{i} = {write.view.dtype.name}({first}, {rest[0]});" if rest else f"o{i} = {first};")
        outputs.append(Parameter(write.view.dtype.name, f"o{i}"))
    return tuple(inputs), tuple(outputs), lines


def kernel_text(kernel: Kernel) -> KernelText:
    """The text of a plan's kernel without reductions."""
    text = statements(kernel.expression, leaf_of(kernel))
    inputs, outputs, lines = element_lines(kernel, text)
    return KernelText(inputs, outputs, "\n".join([*text.lines, *lines]), text.functions)


NAME = "launched"
"""Name of the function of each kernel that takes sizes as parameters."""

MOST_SHORT = 2**31 - 1
"""Kernels over at most so many elements divide by their sizes in 32 bits."""


@dataclass(frozen=True)
class Access:
    """Access of a kernel to an argument: an array, or a number.

    The address, or the number, is the sum of a parameter (where it has one), and of so many words on the card, each
    times a factor. Which words, and the factors, are parameters too. An output that is a number is the condition of a
    graph, its parameter the condition's handle.
    """

    is_number: bool = False
    has_parameter: bool = True
    words: int = 0


def declared(p: Parameter, access: Access) -> list[str]:
    """The parameters: a number's own value or an array's address, then of each word the number, and the factor."""
    found = [f"const {p.dtype} n_{p.name}" if access.is_number else f"char* b_{p.name}"] * access.has_parameter
    return found + [f"const long long {letter}{k}_{p.name}" for k in range(access.words) for letter in "ws"]


def address(p: Parameter, access: Access) -> str:
    """C expression of an array's address."""
    if not access.words:
        return f"b_{p.name}"
    return f"b_{p.name} + {_moved(p, access)}" if access.has_parameter else f"(char*){_moved(p, access)}"


def number(p: Parameter, access: Access) -> str:
    """The value of a number."""
    return f"({p.dtype}){_moved(p, access)}" if access.words else f"n_{p.name}"


def _moved(p: Parameter, access: Access) -> str:
    return f"({' + '.join(f'words[w{k}_{p.name}] * s{k}_{p.name}' for k in range(access.words))})"


class Spec(ABC):
    """A kernel: its parameters are arrays and numbers, those that it reads before those that it writes, then int64s."""

    accesses: tuple[Access, ...]
    is_short: bool
    threads: ClassVar[int]
    # How many words are noted with an index.
    noted: int = 0

    @property
    def is_elementwise(self) -> bool:
        """Return true if each element is computed by itself."""
        return False

    @property
    def keeps(self) -> bool:
        """Return true if elements of what it writes stay as they were."""
        return False

    @property
    @abstractmethod
    def reads(self) -> tuple[Parameter, ...]: ...

    @property
    @abstractmethod
    def writes(self) -> tuple[Parameter, ...]: ...

    @property
    @abstractmethod
    def numbers(self) -> tuple[str, ...]:
        """The names of the int64s."""

    @property
    @abstractmethod
    def statements(self) -> list[str]:
        """Lines of the function's body, behind the arrays' addresses `p_...`."""

    @property
    def preamble(self) -> str:
        """Definitions in front of the function."""
        return preamble("")

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Parameters in the order of the accesses."""
        return (*self.reads, *self.writes)

    @property
    def is_moving(self) -> bool:
        """Return true if it reads words on the card."""
        return bool(self.noted) or any(access.words for access in self.accesses)

    @property
    def conditions(self) -> list[Parameter]:
        """Outputs that are conditions of a graph."""
        return [p for p, access in zip(self.writes, self.accesses[len(self.reads) :], strict=True) if access.is_number]

    def loop(self, name: str, total: str, body: Sequence[str]) -> list[str]:
        """Statements of a thread for its elements of `total`: it goes on with those behind the whole grid."""
        first, step = f"(long long)blockIdx.x * {self.threads} + threadIdx.x", f"(long long)gridDim.x * {self.threads}"
        return [f"for (long long {name} = {first}; {name} < {total}; {name} += {step}) {{", *body, "}"]

    def unravel(self, flat: str, names: Sequence[str], sizes: Sequence[str]) -> list[str]:
        """The index along each axis, from the number of an element."""
        its, lines = "unsigned int" if self.is_short else "long long", list[str]()
        for name, size in zip(reversed(names[1:]), reversed(sizes[1:]), strict=True):
            a, b = (f"({its}){x}" for x in (flat, size))
            lines.append(f"const {its} {name} = {a} % {b}, d{name} = {a} / {b};")
            flat = f"d{name}"
        return lines + [f"const long long {name} = {flat};" for name in names[:1]]


def source(spec: Spec) -> str:
    """The text of a kernel named `NAME`: its parameters are the words' address, and those of its accesses in order."""
    named = list(zip(spec.parameters, spec.accesses, strict=True))
    parameters = ["long long* words"] if spec.is_moving else []
    for p, access in named:
        is_condition = p in spec.conditions
        parameters += [f"const unsigned long long h_{p.name}"] if is_condition else declared(p, access)
    parameters += [f"const long long {name}" for name in spec.numbers]
    lines = [f"char* const p_{p.name} = {address(p, access)};" for p, access in named if not access.is_number]
    head = f'extern "C" __global__ void {NAME}({", ".join(parameters)}) {{'
    return "\n".join([spec.preamble, head, *lines, *spec.statements, "}", ""])


@dataclass(frozen=True)
class KernelLaunch:
    """One launch: arguments in the order of the accesses, then numbers. In a list a site among these is a `Site`."""

    spec: Spec
    arguments: tuple[Any, ...]
    numbers: tuple[Any, ...]
    blocks: int

    @property
    def reads(self) -> tuple[Any, ...]:
        given = self.arguments
        return given if self.spec.keeps else given[: len(self.spec.reads)]

    @property
    def writes(self) -> tuple[Any, ...]:
        return self.arguments[len(self.spec.reads) :]


def broadcast_strides(x: Any, shape: Sequence[int]) -> list[int]:
    """The strides of an array that is seen with a shape that it broadcasts to."""
    lead = len(shape) - len(x.shape)
    return [0] * lead + [0 if n == 1 else step for n, step in zip(x.shape, x.strides, strict=True)]


def joined_axes(
    shape: Sequence[int], axes: Iterable[int], strides: Sequence[Sequence[int]]
) -> tuple[list[int], list[list[int]]]:
    """Sizes and strides along some axes, as few as tell where their elements lie, in the same order."""
    sizes: list[int] = []
    found: list[list[int]] = [[] for _ in strides]
    for axis in axes:
        size, steps = shape[axis], [its[axis] for its in strides]
        if size == 1:
            continue
        if sizes and all(mine[-1] == size * step for mine, step in zip(found, steps, strict=True)):
            # The axis before goes on where this one ends.
            sizes[-1] *= size
            for mine, step in zip(found, steps, strict=True):
                mine[-1] = step
        else:
            sizes.append(size)
            for mine, step in zip(found, steps, strict=True):
                mine.append(step)
    return sizes, found


def copy_text(dtype: np.dtype) -> KernelText:
    """One array written into another of its dtype."""
    return KernelText((Parameter(dtype.name, "a0"),), (Parameter(dtype.name, "o0"),), "o0 = a0;")


class TextBuilder:
    """An expression of whole elements, the parts of complex ones among them, as it is built."""

    def __init__(self) -> None:
        self._builder, self._inputs = ExpressionBuilder(), list[np.dtype]()

    def input(self, dtype: np.dtype) -> Operand:
        """The element of another array, or a number."""
        number = len(self._inputs)
        self._inputs.append(dtype)
        first, *rest = (self._builder.emit("load", (), its, (number, k)) for k, its in enumerate(parts_of(dtype)))
        return (first, rest[0]) if rest else first

    def elementwise(
        self, name: str, operands: Sequence[Operand], dtypes: Sequence[np.dtype], result: np.dtype
    ) -> Operand:
        """An op of elements of these dtypes."""
        return elementwise_expression(name, dtypes, result, self._builder, operands)

    def text(self, value: Operand, dtype: np.dtype) -> KernelText:
        """The kernel that writes a value."""
        parts = value if isinstance(value, tuple) else (value,)
        operands = tuple(Read(Array(f"a{k}", its, ()).view) for k, its in enumerate(self._inputs))
        write = Write(Array("o0", dtype, ()).view, tuple(range(len(parts))))
        return kernel_text(Kernel((), operands, (), self._builder.finish(*parts), (write,)))


def op_text(name: str, dtypes: Sequence[np.dtype], result: np.dtype) -> KernelText:
    """An elementwise op on arrays of these dtypes."""
    builder = TextBuilder()
    return builder.text(builder.elementwise(name, [builder.input(d) for d in dtypes], dtypes, result), result)
