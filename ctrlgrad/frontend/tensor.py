"""The traced tensor: a value of the graph that is being traced, with NumPy's operators, methods and protocols.

Operations are looked up in `FUNCTIONS`; requests for a concrete number raise an error with advice.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ctrlgrad.advice import SOLVERS
from ctrlgrad.errors import LeakedValueError, MissingAttributeError, TracingError, TypeMismatchError
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.functions import FUNCTIONS, call, call_function, call_ufunc, ours
from ctrlgrad.ir import Builder, TensorType, Type, Value
from ctrlgrad.records import pairs
from ctrlgrad.source import in_converted_code, library_function, operation_text, user_operation

SCALARS = (bool, int, float, complex)

# Advice for errors: replacements for what a traced tensor refuses (in-place methods, names of other libraries).


RETURN_IT = "leave it out: a traced tensor has no numbers yet; return it, and the result is a NumPy array"
_IN_PLACE_OF = {
    "numpy": RETURN_IT,
    "cpu": RETURN_IT,
    "block_until_ready": RETURN_IT,
    "backward": "ctrlgrad.grad(fn) gives the gradient of a function",
    "requires_grad": "ctrlgrad.grad(fn, argnums=...) says what is differentiated",
    "requires_grad_": "ctrlgrad.grad(fn, argnums=...) says what is differentiated",
    "grad": "ctrlgrad.grad(fn) gives the gradient of a function",
    "detach": "ctrlgrad.stop_gradient(x)",
    "clone": "leave it out: a traced tensor never changes",
    "view": "x.reshape(shape)",
    "unsqueeze": "ctrlgrad.numpy.expand_dims(x, axis), or x[None]",
    "permute": "x.transpose(axes)",
    "float": "x.astype('float32')",
    "double": "x.astype('float64')",
    "long": "x.astype('int64')",
    "cuda": "ctrlgrad.options(engine='cuda') around the call, not inside of the function",
    "to": "x.astype(dtype), and ctrlgrad.device(...) around the code for a device",
    "assign": "return the new value; x.at[index].set(value) changes a part",
    "set_shape": "declare sizes by ctrlgrad.TensorSpec in the signature",
    "sort": "x = ctrlgrad.numpy.sort(x): a traced tensor is not sorted in place",
    "partition": "x = ctrlgrad.numpy.sort(x): a traced tensor is not sorted in place",
    "argpartition": "ctrlgrad.numpy.argsort(x)",
    "fill": "x = ctrlgrad.numpy.full_like(x, value)",
    "put": "x = x.ravel().at[indices].set(values).reshape(x.shape)",
    "itemset": "x = x.at[index].set(value)",
    "resize": "x = x.reshape(shape); ctrlgrad.numpy.pad and x[:n] change the number of elements",
    "setfield": "x = x.at[index].set(value)",
    "setflags": "leave it out: a traced tensor never changes",
    "byteswap": "leave it out: a traced tensor has no bytes",
    "newbyteorder": "leave it out: a traced tensor has no bytes",
    "flat": "x.ravel()",
    "ptp": "x.max() - x.min()",
    "compress": "x[condition]",
    "choose": "ctrlgrad.numpy.where(condition, a, b), or ctrlgrad.numpy.stack(choices)[i]",
    "nbytes": "x.size * x.dtype.itemsize",
    "itemsize": "x.dtype.itemsize",
    **dict.fromkeys(("tobytes", "tostring", "tofile", "dump", "dumps", "data", "ctypes"), RETURN_IT),
}
# In place of an assignment to an attribute.
SET_BY = {
    "shape": "x = x.reshape(shape)",
    "dtype": "x = x.astype(dtype)",
    "real": "x = ctrlgrad.numpy.make_complex(real, ctrlgrad.numpy.imag(x))",
    "imag": "x = ctrlgrad.numpy.make_complex(ctrlgrad.numpy.real(x), imag)",
    "flat": "x = ctrlgrad.numpy.reshape(values, x.shape)",
}


# Functions of Python that compare their arguments one by one.
_IN_PLACE_OF_PYTHONS = {
    "max": "ctrlgrad.numpy.maximum(x, y), or ctrlgrad.numpy.max(x) of an array's elements",
    "min": "ctrlgrad.numpy.minimum(x, y), or ctrlgrad.numpy.min(x) of an array's elements",
    "sorted": "ctrlgrad.numpy.sort(x)",
    "any": "ctrlgrad.numpy.any(x)",
    "all": "ctrlgrad.numpy.all(x)",
}


def instead_of_bool(argument: str = "") -> str:
    """Advice in place of Python's decision on a traced tensor; `argument` may be meant as a flag of Python's."""
    decisions = (
        "use ctrlgrad.cond for `if`, ctrlgrad.while_loop for `while`, numpy.where to choose elementwise,\n"
        "numpy.logical_and / logical_or / logical_not for `and` / `or` / `not`; "
    )
    if argument.isidentifier():
        decisions += f"for a flag that Python decides on,\nctrlgrad.function(static_argnames={argument!r}); "
    if in_converted_code():
        return (
            f"{decisions}autograph does not convert\n"
            "comprehensions with an `if`, comparisons of lists, and the code of packages: write a `for` and an `if`"
        )
    return f"{decisions}or keep the Python and let\nctrlgrad.function(autograph=True) turn it into them"


def instead_of(name: str) -> str:
    """Return the replacement for a method or attribute that a tensor does not have."""
    if name in _IN_PLACE_OF:
        return _IN_PLACE_OF[name]
    return f"ctrlgrad.numpy.{name}(x)" if name in FUNCTIONS else "see ctrlgrad.numpy for the functions that there are"


# Advice for Python's operations on the user's line, by opcode.
_ASSIGNS = ("STORE_SUBSCR", "STORE_SLICE")
_INDEXES = ("BINARY_SUBSCR", "BINARY_SLICE")
_ASSIGN = (
    "an assignment to a part of a NumPy array",
    "ctrlgrad.numpy.at(y)[index].set(x) gives the changed array; .add, .multiply, .min and .max work alike",
)
_INDEX = (
    "indexing a NumPy array or a list by it",
    """make it an array of this library's: ctrlgrad.numpy.asarray(xs)[t], and ctrlgrad.numpy.stack(items)[t] of a list;
or pass xs to the function as an argument""",
)


def what_the_user_does(otherwise: str, hint: str) -> tuple[str, str]:
    """Return the operation that asks a tensor for its value, as the user sees it, and its replacement."""
    operation, called = user_operation(), library_function()
    if operation in _ASSIGNS:
        return _ASSIGN
    if called is not None:
        instead = ours(*called)
        return ".".join(called), f"{instead}, which takes traced values" if instead else SOLVERS.get(called[0], hint)
    return _INDEX if operation in _INDEXES else (otherwise, hint)


def refuse_torch(cls: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Refuse a function of PyTorch on a traced tensor. While PyTorch's code is traced it does not come here."""
    raise TracingError(
        f"PyTorch's function {getattr(func, '__name__', func)!r} is called on a traced tensor of this library",
        expected="functions of ctrlgrad.numpy",
        got=", ".join(repr(x) if hasattr(x, "builder") else type(x).__name__ for x in args),
        hint="ctrlgrad.from_torch(fn) is a function of this library that runs PyTorch's operators",
    )


def _text(x: Tensor) -> str:
    """The type and origin of a tensor, for errors."""
    return f"Tensor({x.value.type}{', ' + x.value.hint if x.value.hint else ''})"


def leaked(x: Tensor) -> LeakedValueError:
    """The error of a tensor whose function or region has ended: where it was made, and by which trace."""
    builder = x.builder
    origin = next((node.source for node in builder.nodes if x.value in node.results), None)
    # An input has no node: it was made where the trace began.
    origin = origin or builder.began
    return LeakedValueError(
        "a traced tensor is used after its function or region has ended",
        expected="a value that the function or region returned",
        got=f"{_text(x)} from {builder.name}" + (f", made at {origin}" if origin else ""),
        hint="return the value, or carry it through the loop; ctrlgrad.scan or a TensorArray collects one an iteration",
    )


_NUMBERS = (
    ";\nin ctrlgrad.grad(fn)(x), without ctrlgrad.function and outside of loops, x.item() is a number,"
    "\nthrough which no derivative goes"
)


class Tensor:
    """A value of the graph that is being traced: dtype and shape are known, the numbers are not.

    It has NumPy's operators and methods and works in `np.tanh(x)` as in `ctrlgrad.numpy.tanh(x)`. A dimension
    that is unknown until run time appears in `shape` as a traced scalar. `weak` marks a tensor that stands for a
    Python number: it does not widen what it is combined with (NEP 50).
    """

    __slots__ = ("builder", "value", "weak")
    __array_priority__ = 1000

    def __init__(self, builder: Builder, value: Value, weak: bool = False) -> None:
        self.builder = builder
        self.value = value
        self.weak = weak

    @property
    def type(self) -> Type:
        return self.value.type

    @property
    def tensor_type(self) -> TensorType:
        """The type; an error for a stack."""
        if not isinstance(self.value.type, TensorType):
            raise TypeMismatchError(
                "a TensorArray is not a tensor",
                expected="a tensor",
                got=str(self.value.type),
                hint="use .read(i) or .stack()",
            )
        return self.value.type

    @property
    def dtype(self) -> np.dtype:
        return self.tensor_type.dtype

    @property
    def ndim(self) -> int:
        return self.tensor_type.rank

    @property
    def shape(self) -> tuple[Any, ...]:
        """An int for each known dimension; for each unknown one a traced scalar that promotes like an int."""
        return tuple(
            FUNCTIONS["__dim__"](self, axis) if d is None else d for axis, d in enumerate(self.tensor_type.shape)
        )

    @property
    def size(self) -> Any:
        total: Any = 1
        for d in self.shape:
            total = total * d
        return total

    def __repr__(self) -> str:
        # An f-string of a whole shape comes here too.
        if self.weak and trace.trial() is not None:
            raise self._concrete(
                "its text (str(), repr(), an f-string)",
                "ctrlgrad.debug.print('{x}', x=x) prints the number when the program runs",
            )
        return _text(self)

    def __format__(self, spec: str) -> str:
        if spec:
            hint = f"ctrlgrad.debug.print('{{x:{spec}}}', x=x) prints the number when the program runs"
            raise self._concrete("formatting it (an f-string)", hint)
        return repr(self)

    # Operations that need a concrete number: refused, with advice.

    def _concrete(self, what: str, hint: str) -> TracingError | LeakedValueError:
        if not self.builder.is_open:
            return leaked(self)
        trace.note_number()
        error = TracingError(
            f"{what} needs a number, and a traced tensor has none until the program runs",
            expected="a concrete value",
            got=_text(self),
            hint=hint,
        )
        error.refused = (self,)
        return error

    def _number(self) -> Any:
        """Return its array as a constant without a derivative, as JAX does; None where this call does not know it."""
        return self.builder.number(self.value)

    def _whole_number(self) -> Any:
        """Its number, where it is known in this call and has no derivative that could be lost."""
        return self.builder.number(self.value) if self.dtype.kind in "biu" else None

    def __bool__(self) -> bool:
        if (number := self.builder.number(self.value)) is not None:
            return bool(number)
        is_flag = self.value in self.builder.inputs and self.dtype.kind in "bi"
        called = operation_text().partition("(")[0]
        if called in _IN_PLACE_OF_PYTHONS:
            raise self._concrete(f"{called}() of Python", _IN_PLACE_OF_PYTHONS[called])
        raise self._concrete(
            "bool() (an `if`, a `while`, `and`, `or`, `not`, or a comparison chain)",
            instead_of_bool((self.value.hint or "") if is_flag else ""),
        )

    def __hash__(self) -> int:
        raise self._concrete(
            "hash() (a key of a dict, an element of a set)",
            "use ctrlgrad.switch for a table of functions, and ctrlgrad.numpy.stack(values)[i] for a table of values",
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in Tensor.__slots__:
            raise AttributeError(name)
        raise MissingAttributeError(
            f"a traced tensor has no attribute {name!r}",
            expected="NumPy's methods and attributes",
            got=f"{self!r}.{name}",
            hint=instead_of(name),
        )

    def __int__(self) -> int:
        if (number := self.builder.number(self.value)) is not None:
            return int(number)
        raise self._concrete("int()", "keep it a tensor: x.astype(int); indices and loop bounds may be tensors")

    def __index__(self) -> int:
        if (number := self._whole_number()) is not None:
            return operator.index(number[()])
        raise self._concrete(
            *what_the_user_does(
                "using it as a Python index (range(), a shape)",
                "use ctrlgrad.fori_loop for range(), and ctrlgrad.numpy functions for a traced size",
            )
        )

    def __float__(self) -> float:
        # As in JAX, `float(x)` and functions of `math` are refused: their derivative would be lost unseen.
        if (number := self._whole_number()) is not None:
            return float(number)
        if operation_text().startswith("float("):
            raise self._concrete("float(x)", f"x.astype(float) is a tensor{_NUMBERS}")
        if user_operation() == "BINARY_OP":  # "%.2f" % x
            raise self._concrete("formatting it", "ctrlgrad.debug.print('{x:.2f}', x=x) prints the number when it runs")
        raise self._concrete(
            *what_the_user_does("float() (a function of `math`)", "keep it a tensor: numpy.sin(x), x.astype(float)")
        )

    def __complex__(self) -> complex:
        raise self._concrete("complex()", "keep it a tensor: x.astype(complex)")

    def __round__(self, ndigits: Any = None) -> Any:
        """As Python's numbers: to integers, unless digits are asked for."""
        return _to_integers("round")(self) if ndigits is None else FUNCTIONS["round"](self, ndigits)

    def __pow__(self, other: Any, modulus: Any = None) -> Any:
        if modulus is not None:
            raise TracingError(
                "pow() with a modulus is not supported on traced tensors",
                expected="pow(x, y)",
                got="pow(x, y, modulus)",
                hint="x ** y % modulus, where x ** y does not overflow its dtype",
            )
        if self.weak and self.dtype.kind in "iu" and isinstance(other, int) and other < 0:
            return 1 / _power(self, -other)
        return _power(self, other)

    # A traced tensor never changes, so its copy is itself.

    def __copy__(self) -> Tensor:
        return self

    def __deepcopy__(self, memo: Any) -> Tensor:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise self._concrete("pickling it", RETURN_IT)

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        raise self._concrete("handing it to another library (from_dlpack)", RETURN_IT)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def item(self, *index: Any) -> Any:
        if (number := self._number()) is not None:
            return number.item(*index)
        hint = "leave it out: a tensor itself is good in arithmetic, conditions and indices"
        raise self._concrete("x.item()", hint + _NUMBERS)

    def tolist(self) -> Any:
        if (number := self._whole_number()) is not None:
            return number.tolist()
        raise self._concrete("x.tolist()", f"iterate over it by ctrlgrad.scan, or return it first{_NUMBERS}")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise self._concrete(
            *what_the_user_does(
                "converting it to a NumPy array (numpy.array, numpy.asarray, numpy.arange)",
                "use ctrlgrad.numpy functions: ctrlgrad.numpy.stack([a, b]) for numpy.array([a, b]),"
                "\nctrlgrad.numpy.asarray, ctrlgrad.numpy.arange; ctrlgrad.random with a key for numpy.random",
            )
        )

    def __len__(self) -> int:
        shape = self.tensor_type.shape
        if not shape:
            raise TracingError(
                "len() of a scalar",
                expected="a tensor of rank 1 or more",
                got=repr(self),
                hint="x.ndim is the rank; a scalar is one number",
            )
        if shape[0] is None:
            raise self._concrete("len() of an unknown dimension", "use x.shape[0], a traced scalar")
        return shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.tensor_type.shape:
            raise TracingError(
                "iterating over a scalar",
                expected="a tensor of rank 1 or more",
                got=repr(self),
                hint="use the scalar itself; ctrlgrad.fori_loop counts up to a traced scalar",
            )
        if self.tensor_type.shape[0] is None:
            raise self._concrete("iterating over an unknown dimension", "use ctrlgrad.scan or ctrlgrad.fori_loop")
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        return FUNCTIONS["getitem"](self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TracingError(
            "item assignment: a traced tensor cannot be changed in place",
            expected="an update that returns the new tensor",
            got=f"an assignment into {self!r}",
            hint="x = x.at[index].set(value), or .add(value); it is done in place where x is not used again",
        )

    def __delitem__(self, key: Any) -> None:
        raise TracingError(
            "item deletion: a traced tensor cannot be changed in place",
            expected="a function that returns the new tensor",
            got=f"del of a part of {self!r}",
            hint="ctrlgrad.numpy.concat([x[:i], x[i + 1:]])",
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name in Tensor.__slots__:
            object.__setattr__(self, name, value)
            return
        raise TracingError(
            f"x.{name} = ...: a traced tensor cannot be changed in place",
            expected="a function that returns the new tensor",
            got=f"an assignment to {self!r}.{name}",
            hint=SET_BY.get(name, "keep the value in a variable of its own"),
        )

    # NumPy's protocols.

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return call_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return call_function(func, args, kwargs)

    __torch_function__: Any = classmethod(refuse_torch)

    @property
    def device(self) -> str:
        """As that of NumPy's arrays: where the numbers are for the caller of the program."""
        return "cpu"

    def to_device(self, device: Any, /, *, stream: Any = None) -> Any:
        return FUNCTIONS["__to_device__"](self, device, stream)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        FUNCTIONS["__check_version__"](api_version)
        return FUNCTIONS["__namespace__"]()


def is_weak(x: Any) -> bool:
    """Return true if x is a Python number, or a traced tensor that promotes like one."""
    # np.float64 is a subclass of float, but no Python number: it has a dtype of its own.
    return x.weak if isinstance(x, Tensor) else isinstance(x, SCALARS) and not isinstance(x, np.generic)


def _operator(name: str, *operands: Any) -> Any:
    """Call the array function behind an operator; Python numbers give Python numbers, which a function does not."""
    if not all(map(is_weak, operands)):
        return FUNCTIONS[name](*operands)
    if name in _OTHER_FOR_BOOLEANS and trace.trial() is not None and all(map(_is_boolean, operands)):
        # Comparisons of known sizes are Python's booleans, which are integers here; NumPy's are not.
        tensor = next(x for x in operands if isinstance(x, Tensor))
        raise tensor._concrete("arithmetic of Python's booleans", "x.astype(int) makes integers of them")
    found = FUNCTIONS[name](*operands)
    return tuple(map(_weak, found)) if isinstance(found, tuple) else _weak(found)


def _weak(x: Any) -> Any:
    return Tensor(x.builder, x.value, weak=True) if isinstance(x, Tensor) else x.item()


def _is_boolean(x: Any) -> bool:
    return isinstance(x, bool) or (isinstance(x, Tensor) and x.dtype == np.bool_)


def _binary(name: str) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    def accepts(self: Any, other: Any) -> bool:
        # A list times a Python integer is the list repeated: Python asks for the number.
        is_repeated = name == "multiply" and self.weak and self.dtype.kind in "iu"
        return is_operand(other, nested=not is_repeated)

    def forward(self: Any, other: Any) -> Any:
        return _operator(name, self, other) if accepts(self, other) else NotImplemented

    def reflected(self: Any, other: Any) -> Any:
        return _operator(name, other, self) if accepts(self, other) else NotImplemented

    return forward, reflected


_OPERANDS = (Tensor, np.ndarray, np.generic, *SCALARS)


def is_operand(x: Any, nested: bool = False) -> bool:
    """Return true if x is a tensor, an array (another library's too) or a number; `nested`: also a list of them."""
    if isinstance(x, _OPERANDS):
        return True
    is_array = (hasattr(x, "__array__") or getattr(x, "__jax_array__", None) is not None) and not isinstance(x, type)
    return (is_array and not hasattr(type(x), "__ctrlgrad_value__")) or (nested and isinstance(x, list | tuple))


_OPERATORS = pairs(
    "add:add sub:subtract mul:multiply truediv:divide floordiv:floor_divide mod:remainder divmod:divmod pow:power "
    "matmul:matmul and:bitwise_and or:bitwise_or xor:bitwise_xor lshift:bitwise_left_shift rshift:bitwise_right_shift"
)
_OTHER_FOR_BOOLEANS = {"add", "subtract", "multiply", "negative", "positive", "abs", "bitwise_invert"}
_COMPARISONS = pairs("lt:less le:less_equal gt:greater ge:greater_equal eq:equal ne:not_equal")
_power = _binary("power")[0]
for _dunder, _name in _OPERATORS.items():
    _forward, _reflected = _binary(_name)
    if _dunder != "pow":  # which takes a modulus too
        setattr(Tensor, f"__{_dunder}__", _forward)
    setattr(Tensor, f"__r{_dunder}__", _reflected)
for _dunder, _name in _COMPARISONS.items():
    setattr(Tensor, f"__{_dunder}__", _binary(_name)[0])


def _to_integers(name: str) -> Callable[[Any], Any]:
    def convert(self: Tensor) -> Any:
        integers = FUNCTIONS["astype"](FUNCTIONS[name](self), np.int64)
        return Tensor(integers.builder, integers.value, self.weak)

    return convert


def _attribute(name: str) -> property:
    return property(lambda self: FUNCTIONS[name](self))


for _name in ("floor", "ceil", "trunc"):
    setattr(Tensor, f"__{_name}__", _to_integers(_name))
for _name, _function in pairs("T:transpose mT:matrix_transpose real:real imag:imag at:at").items():
    setattr(Tensor, _name, _attribute(_function))


def _method(name: str) -> Callable[..., Any]:
    def method(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        return call(f"Tensor.{name}", name, (self, *args), kwargs)

    method.__name__ = name
    return method


def _unary(name: str) -> Callable[[Any], Any]:
    return lambda self: _operator(name, self)


for _dunder, _name in pairs("neg:negative pos:positive abs:abs invert:bitwise_invert").items():
    setattr(Tensor, f"__{_dunder}__", _unary(_name))
_METHODS = """sum mean prod max min any all argmax argmin cumsum cumprod clip reshape transpose squeeze astype take
ravel flatten dot round std var copy conj conjugate swapaxes repeat argsort nonzero searchsorted trace diagonal"""
for _name in _METHODS.split():
    setattr(Tensor, _name, _method(_name))
