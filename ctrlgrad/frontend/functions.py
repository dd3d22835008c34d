"""The array functions by name: registered once, found by operators, methods and NumPy's protocols.

`FUNCTIONS` is filled by the modules of `ctrlgrad.frontend.array`. A tensor knows none of them; it looks here.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from ctrlgrad.advice import EXPLAINED, explain_calls, instead_of_keywords, is_inside, misfit, no_such_name
from ctrlgrad.errors import TracingError
from ctrlgrad.records import pairs
from ctrlgrad.source import library_function

# Elementwise functions, with the methods and keywords of NumPy's ufuncs.
#
# The methods are implemented in `ctrlgrad.frontend.array.ufunc_methods`; a function finds them by name, as a tensor
# finds the array functions.


# Keywords of a call, after the function's own parameters.
_KEYWORDS = [
    inspect.Parameter("where", inspect.Parameter.KEYWORD_ONLY, default=True),
    inspect.Parameter("dtype", inspect.Parameter.KEYWORD_ONLY, default=None),
]


class ufunc:
    """A function of arrays, element by element; as `jax.numpy.ufunc`.

    Called with `dtype=` it computes in the dtypes of NumPy's function that give this dtype. With `where=` only the
    elements at which the condition holds are computed, derivatives included; the other elements are 0 (NumPy leaves
    them uninitialised).

    Args:
        func: the function of `nin` arrays, which broadcasts them.
        nin, nout: the numbers of its operands and results.
        name: its name, that of `func` by default.
        identity: what `reduce` gives for no elements; None where there is no such value.

    >>> cnp.add.reduce([[1, 2], [3, 4]], axis=1)
    array([3, 7])
    >>> cnp.divide([1.0, 2.0], [0.0, 4.0], where=[False, True])
    array([0. , 0.5])
    """

    # The array functions by name; the module that registers them says so.
    functions: Mapping[str, Callable[..., Any]] = {}
    __name__: str

    def __init__(
        self, func: Callable[..., Any], nin: int, nout: int, *, name: str | None = None, identity: Any = None
    ) -> None:
        functools.update_wrapper(self, func)
        self.func, self.nin, self.nout, self.identity = func, nin, nout, identity
        self.__name__ = str(name or getattr(func, "__name__", "ufunc"))
        own = inspect.signature(func)
        if not any(p.kind == p.VAR_KEYWORD for p in own.parameters.values()):
            self.__signature__ = own.replace(parameters=[*own.parameters.values(), *_KEYWORDS])

    @property
    def nargs(self) -> int:
        """The number of its operands and results together."""
        return self.nin + self.nout

    def __repr__(self) -> str:
        return f"<ctrlgrad.numpy.ufunc {self.__name__!r}>"

    def __call__(self, *args: Any, where: Any = True, dtype: Any = None, **others: Any) -> Any:
        if where is True and dtype is None:
            return self.func(*args, **others)
        return self.functions["ufunc.call"](self, args, others, where, dtype)

    def reduce(
        self, a: Any, axis: Any = 0, dtype: Any = None, keepdims: bool = False, initial: Any = None, where: Any = True
    ) -> Any:
        """The elements along axes combined from the first to the last; None is all axes.

        `initial` stands before the first, and elements at which `where` does not hold are left out.

        >>> print(cnp.subtract.reduce([9, 3, 2]))
        4
        """
        return self.functions["ufunc.reduce"](self, a, axis, dtype, keepdims, initial, where)

    def accumulate(self, a: Any, axis: int = 0, dtype: Any = None) -> Any:
        """Results of `reduce` over the elements up to each one along an axis.

        >>> cnp.maximum.accumulate([1, 3, 2, 4])
        array([1, 3, 3, 4])
        """
        return self.functions["ufunc.accumulate"](self, a, axis, dtype)

    def outer(self, a: Any, b: Any, /) -> Any:
        """The function of each element of a and each of b, of the shape of a followed by that of b.

        >>> cnp.add.outer([1, 2], [10, 20])
        array([[11, 21],
               [12, 22]])
        """
        return self.functions["ufunc.outer"](self, a, b)

    def at(self, a: Any, indices: Any, b: Any = None, /, *, inplace: bool = False) -> Any:
        """a with the elements at `indices` replaced by the function of them (and of b), as often as each is named.

        Returns the new array; a stays as it is.

        >>> cnp.add.at([1, 2], [0, 0], 10)
        array([21,  2])
        """
        return self.functions["ufunc.at"](self, a, indices, b, inplace)

    def reduceat(self, a: Any, indices: Any, axis: int = 0, dtype: Any = None) -> Any:
        """Results of `reduce` over the parts that begin at each of `indices` and end before the next one.

        If the next index is not larger, the part is one element; the last part goes to the end.

        >>> cnp.add.reduceat([1, 2, 3, 4], [0, 2])
        array([3, 7])
        """
        return self.functions["ufunc.reduceat"](self, a, indices, axis, dtype)


def as_ufunc(function: Any) -> Any:
    """The function as a `ufunc` where NumPy has one of its name; the function itself elsewhere."""
    numpys = getattr(np, function.__name__, None)
    # Products of matrices are made of whole rows, not of elements.
    if not isinstance(numpys, np.ufunc) or numpys.signature is not None:
        return function
    return ufunc(function, numpys.nin, numpys.nout, identity=numpys.identity)


FUNCTIONS: dict[str, Callable[..., Any]] = {}
ufunc.functions = FUNCTIONS
# Default of an argument for which None has a meaning.
MISSING: Any = object()

F = TypeVar("F", bound=Callable[..., Any])


def _result(found: Any) -> Any:
    """A result, the caller's own array as an `Array`: in-place operators then give their name a new array."""
    if type(found) is np.ndarray:
        return FUNCTIONS["array.concrete"](found)
    if type(found) in (list, tuple):
        return type(found)(map(_result, found))
    return found


AtOnce = Callable[[Callable[..., Any], Sequence[Any], Mapping[str, Any]], Any]


def array_function(
    *names: str, of: Callable[[str, Any], Any] | None = None, at_once: AtOnce | None = None
) -> Callable[[F], F]:
    """Register an array function under its own name and further ones; a `ufunc` where NumPy has one.

    `of(name, x)` makes an array of the first argument, as `promote.operand` does. `at_once(fn, args, kwargs)` is the
    result of a call if it can be computed without the function, else None.
    """

    def register(fn: F) -> F:
        own, first = fn.__name__, fn.__code__.co_varnames[:1]

        @functools.wraps(fn)
        def function(*args: Any, **kwargs: Any) -> Any:
            try:
                if at_once is not None and (found := at_once(fn, args, kwargs)) is not None:
                    return found
                if of is not None and args:
                    args = (of(own, args[0]), *args[1:])
                elif of is not None:
                    kwargs |= {x: of(own, kwargs[x]) for x in first if x in kwargs}
                return _result(fn(*args, **kwargs))
            except TypeError as error:
                if is_inside(error):
                    raise
                raise misfit(fn, args, kwargs, error) from None

        vars(function)[EXPLAINED] = True
        registered: F = as_ufunc(function)
        for name in (registered.__name__, *names):
            FUNCTIONS[name] = registered
        return registered

    return register


def described(function: F, name: str, summary: str, example: str) -> F:
    """Name and document a function that a factory made, and return it; `example` is "call -> result"."""
    call, result = example.split(" -> ")
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{summary}\n\n    >>> {call}\n    {result}\n    "
    return function


def publish(module: str, *helpers: str, more: Iterable[str] = (), is_facade: bool = False) -> None:
    """Set `__all__` and `__dir__` of a module: the names that it defines, without `helpers` for other modules.

    A facade also refuses other names with advice, and its functions explain their calls.

    Args:
        more: further public names.
        is_facade: imported names are public too, except modules.
    """
    space, hidden = vars(sys.modules[module]), {*helpers, "annotations", "publish"}
    names = [name for name, x in space.items() if name[0] != "_" and name not in hidden and not inspect.ismodule(x)]
    names = [name for name in names if is_facade or getattr(space[name], "__module__", None) == module]
    # Not by an assignment in the module: type checkers then take all of its names without an underscore.
    space["__all__"] = [*names, *more]
    space["__dir__"] = lambda: sorted(space["__all__"])
    if is_facade:

        def missing(name: str) -> Any:
            raise no_such_name(module, name, space["__all__"])

        space["__getattr__"] = missing
        explain_calls(space, [name for name in names if not inspect.isclass(space[name])])


def call_ufunc(numpys: np.ufunc, method: str, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Work of `__array_ufunc__` for a tensor: call the array function of the same name."""
    name = numpys.__name__
    if method == "at":
        raise _in_place(
            f"np.{name}.at", f"x = x.at[index].add(value), or x = ctrlgrad.numpy.{name}.at(x, indices, values)"
        )
    shown = f"{module_of(numpys)}.{name}"
    if shown.startswith("scipy"):
        raise _unsupported(shown, inputs, ours("scipy.special", name))
    if method == "__call__":
        return call(shown, name, inputs, kwargs)
    fn = getattr(FUNCTIONS.get(name), method, None)
    if fn is None:
        raise _unsupported(f"{shown}.{method}", inputs)
    return _called(f"{shown}.{method}", name, fn, inputs, kwargs)


def module_of(numpys: np.ufunc) -> str:
    """Module of a ufunc, as users write it."""
    there = sys.modules.get("scipy.special")
    return "scipy.special" if getattr(there, numpys.__name__, None) is numpys else "np"


def ours(module: str, name: str) -> str | None:
    """Name of this library's counterpart of a function of NumPy or SciPy, for a hint."""
    if module in ("np", "numpy"):
        return f"ctrlgrad.numpy.{name}" if name in FUNCTIONS else None
    try:
        # A module of a higher layer, imported here only to look up its names.
        there = importlib.import_module(f"ctrlgrad.{module}")
    except ImportError:
        return None
    return f"ctrlgrad.{module}.{name}" if name in getattr(there, "__all__", ()) else None


def call_function(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Work of `__array_function__` for a tensor: call the array function of the same name."""
    module = str(func.__module__).replace("numpy", "np", 1)
    return call(f"{module}.{func.__name__}", func.__name__, args, kwargs)


def call(shown: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call an array function by its name; a TracingError where there is none, or not with these arguments."""
    if name in _CHANGING:
        _, called = library_function() or ("", name)
        if called != name and called in FUNCTIONS:
            # NumPy's own function fills an array of its own.
            raise _unsupported(f"np.{called}", args, f"ctrlgrad.numpy.{called}")
        raise _in_place(shown, _CHANGING[name])
    if name not in FUNCTIONS:
        raise _unsupported(shown, args)
    return _called(shown, name, FUNCTIONS[name], args, kwargs)


def _called(shown: str, name: str, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The function, where it takes these arguments."""
    kwargs = {key: value for key, value in kwargs.items() if not _says_nothing(key, value)}
    if "out" in kwargs:
        raise _given_out(shown, name, args, kwargs["out"])
    signature = _signature(fn)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        refused = TracingError(
            f"{shown}: these arguments are not supported on traced tensors ({error})",
            expected=f"{fn.__name__}{_parameters(signature)}",
            got=f"{len(args)} positional arguments" + "".join(f", {key}=" for key in kwargs),
            hint=instead_of_keywords(kwargs, list(signature.parameters))
            or "convert before or after with .astype(...), or select with numpy.where",
        )
        refused.refused = tuple(args)
        raise refused from error
    return fn(*args, **kwargs)


def _says_nothing(key: str, value: Any) -> bool:
    """Return true if a NumPy argument has its default value; NumPy's own wrappers pass such arguments."""
    if key == "where":
        return value is True or value is None
    if key == "out":
        return value is None or (isinstance(value, tuple) and all(x is None for x in value))
    return key == "initial" and (value is None or type(value).__name__ == "_NoValueType")


@lru_cache(maxsize=512)
def _signature(fn: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(fn)


def _parameters(signature: inspect.Signature) -> str:
    """The parameters as `(x, axis, keepdims)`."""
    return f"({', '.join(signature.parameters)})"


# NumPy's functions that change their first argument, with the function that returns a changed array instead.
_CHANGING = {
    "copyto": "x = ctrlgrad.numpy.where(mask, values, x)",
    "putmask": "x = ctrlgrad.numpy.where(mask, values, x)",
    "place": "x = x.at[mask].set(values)",
    "put": "x = x.ravel().at[indices].set(values).reshape(x.shape)",
    "put_along_axis": "x = x.at[indices].set(values)",
    "fill_diagonal": "x = ctrlgrad.numpy.where(ctrlgrad.numpy.eye(n, dtype=bool), value, x)",
}


def _in_place(shown: str, hint: str) -> TracingError:
    return TracingError(
        f"{shown}: a traced tensor cannot be changed in place",
        expected="a function that returns the new tensor",
        got=shown,
        hint=hint,
    )


_OPERATORS = pairs(
    "add:+ subtract:- multiply:* divide:/ true_divide:/ floor_divide:// remainder:% power:** matmul:@ "
    "bitwise_and:& bitwise_or:| bitwise_xor:^"
)


def _given_out(shown: str, name: str, args: Sequence[Any], out: Any) -> TracingError:
    """Error for out=, or for an operator like += on a NumPy array."""
    targets = out if isinstance(out, tuple) else (out,)
    operator = _OPERATORS.get(name)
    in_place = operator is not None and any(args and target is args[0] for target in targets)
    error = TracingError(
        f"{operator}= on a NumPy array: it cannot take a traced value in place"
        if in_place
        else f"{shown}: out= is not possible on a traced tensor",
        expected="an expression that gives a new tensor" if in_place else "a call without out=",
        got=f"y {operator}= x, where x is traced" if in_place else "a call with out=",
        hint=f"y = y {operator} x" if in_place else "use the result: y = f(x) instead of f(x, out=y)",
    )
    # The targets are the user's own arrays: with concrete arguments the call works, so the trace may be retried with
    # them.
    if all(isinstance(target, np.ndarray) for target in targets):
        error.refused = tuple(args)
    return error


def _unsupported(shown: str, args: Sequence[Any], instead: str | None = None) -> TracingError:
    error = TracingError(
        f"{shown} is not supported on traced tensors",
        expected="a function of ctrlgrad",
        got=shown,
        hint=f"{instead}, which takes them" if instead else "see ctrlgrad.numpy and ctrlgrad.scipy for what there is",
    )
    error.refused = tuple(args)
    return error
