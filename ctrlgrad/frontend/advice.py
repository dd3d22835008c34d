"""What to write in place of what a traced tensor refuses: methods that would change it, and other libraries' names."""

from __future__ import annotations

from typing import Any

from ctrlgrad.errors import TracingError
from ctrlgrad.frontend.functions import FUNCTIONS, ours
from ctrlgrad.source import here, in_converted_code, library_function, user_operation

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


def instead_of_bool() -> str:
    """Advice in place of Python's decision on a traced tensor."""
    decisions = (
        "use ctrlgrad.cond for `if`, ctrlgrad.while_loop for `while`, numpy.where to choose elementwise,\n"
        "numpy.logical_and / logical_or / logical_not for `and` / `or` / `not`; "
    )
    if in_converted_code():
        return (
            f"{decisions}autograph leaves\n"
            "comprehensions, comparisons of lists and what packages do to Python: write a `for` and an `if`"
        )
    return f"{decisions}or keep the Python and let\nctrlgrad.function(autograph=True) turn it into them"


def instead_of(name: str) -> str:
    """What to write in place of a method or attribute that a tensor does not have."""
    if name in _IN_PLACE_OF:
        return _IN_PLACE_OF[name]
    return f"ctrlgrad.numpy.{name}(x)" if name in FUNCTIONS else "see ctrlgrad.numpy for the functions that there are"


# Of Python's operations on the user's line, by the names of their codes.
_ASSIGNS = ("STORE_SUBSCR", "STORE_SLICE")
_INDEXES = ("BINARY_SUBSCR", "BINARY_SLICE")
_ASSIGN = (
    "an assignment to a part of a NumPy array",
    "ctrlgrad.numpy.at(y)[index].set(x) gives the changed array; .add and others are there too",
)
_INDEX = (
    "indexing a NumPy array or a list by it",
    """make it an array of this library's: ctrlgrad.numpy.asarray(xs)[t], and ctrlgrad.numpy.stack(items)[t] of a list;
or pass xs to the function as an argument""",
)


def what_the_user_does(otherwise: str, hint: str) -> tuple[str, str]:
    """What asks a tensor for its value, as the user sees it, and what to write instead."""
    operation, called = user_operation(), library_function()
    if operation in _ASSIGNS:
        return _ASSIGN
    if called is not None:
        instead = ours(*called)
        return ".".join(called), f"{instead}, which takes traced values" if instead else hint
    return _INDEX if operation in _INDEXES else (otherwise, hint)


def refuse_torch(cls: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Refuse a function of PyTorch on a traced tensor. While PyTorch's code is traced it does not come here."""
    raise TracingError(
        f"PyTorch's function {getattr(func, '__name__', func)!r} is called on a traced tensor of this library",
        source=here(),
        expected="functions of ctrlgrad.numpy",
        got=", ".join(map(repr, args)),
        hint="ctrlgrad.from_torch(fn) is a function of this library that runs PyTorch's operators",
    )
