"""Values of Python variables in traced control flow: arrays at the leaves of a pytree, and static parts.

Arrays, numbers and tensors can change in a traced loop or differ between branches. All else (None, strings,
functions, objects, the shape of the pytree) is static: it must be the same on every path.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from types import CellType, FunctionType, MappingProxyType
from typing import Any, Protocol, Self

import numpy as np

from ctrlgrad import tree
from ctrlgrad.blocks import holding
from ctrlgrad.errors import CtrlgradError, TracingError, TypeMismatchError
from ctrlgrad.frontend.apply import EagerStack, type_of
from ctrlgrad.frontend.checks import type_name
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import note_number
from ctrlgrad.ir import Builder, StackType, TensorType, Type, Value
from ctrlgrad.source import Source, here, is_raised, raised_at

# `raise` under a traced condition, and `except`.
#
# Both branches of an `if` on a traced tensor are traced, and the body of a `while` or `for` is traced whether it will
# run or not. So a `raise` in one would fire whatever the condition will be. An exception that a `raise` statement lets
# escape from such a block is refused, with the line of the `raise`, in code that autograph leaves as it is, too; no
# handler around the block may take it.


_RAISED_AT = "__ctrlgrad_raised_at__"
_REFUSED = "__ctrlgrad_refuses_a_raise__"


def raised(error: Any) -> Any:
    """The exception of a `raise` statement, marked with the line."""
    if isinstance(error, type) and issubclass(error, BaseException):
        error = error()
    with suppress(AttributeError, TypeError):
        setattr(error, _RAISED_AT, here())
    return error


def handled() -> None:
    """At the beginning of each `except`: what refuses a `raise` is raised again."""
    error = sys.exc_info()[1]
    if error is not None and hasattr(error, _REFUSED):
        raise error


@contextmanager
def tracing(construct: str, source: Source | None) -> Iterator[None]:
    """Around the tracing of what a construct on a traced tensor runs."""
    try:
        yield
    except CtrlgradError:
        raise
    except Exception as error:
        at = getattr(error, _RAISED_AT, None)
        if at is None and not is_raised(error):
            error.add_note(
                f"raised when the {construct} on a traced tensor was traced, at: {source}\n"
                "Both branches are traced, and the bodies of loops, whatever the condition will be."
            )
            raise
        refused = TracingError(
            f"a `raise` inside the {construct} on a traced tensor",
            source=at or raised_at(error),
            expected="exceptions that Python can decide on while tracing: both branches are traced, and the bodies of\n"
            "loops, whatever the condition will be",
            got=f"{type(error).__name__}: {error}".rstrip(": "),
            hint="return the condition and raise outside of the function, or give ctrlgrad.debug.callback a function\n"
            "that raises when its values say so",
        )
        setattr(refused, _REFUSED, True)
        scope = _SCOPE.get()
        if scope is not None:
            scope.refused = refused
        raise refused from error


class Scope:
    """The block around a converted function's body: a refusal that code inside has caught is raised at its end."""

    def __enter__(self) -> Self:
        self.refused: TracingError | None = None
        self._token = _SCOPE.set(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        _SCOPE.reset(self._token)
        outer = _SCOPE.get()
        if self.refused is not None and outer is not None:
            outer.refused = self.refused
        if self.refused is not None and error is None:
            raise self.refused


_SCOPE: ContextVar[Scope | None] = ContextVar("scope", default=None)


# Truth of traced tensors, and objects of another library that represent them.


class Representation(Protocol):
    """Objects of another library that represent values of the trace, such as PyTorch's tensors."""

    def plain(self, x: Any) -> Any:
        """The traced tensor or array that x represents; x itself if it represents none."""

    def number(self, x: Any) -> Any:
        """As `plain`, for `float(x)` and `int(x)`."""

    def represented(self, x: Any) -> Any:
        """An object that represents a value in the current region."""

    def stands(self, x: Any, value: Any) -> bool:
        """Return true if an object still represents a value in the region that is being traced."""


# Set while a program of another library is traced.
REPRESENTATION: ContextVar[Representation | None] = ContextVar("how traced tensors stand in a program", default=None)

GetState = Callable[[], tuple[Any, ...]]
SetState = Callable[[tuple[Any, ...]], None]


def is_traced(x: Any) -> bool:
    return isinstance(x, Tensor)


def plain(x: Any) -> Any:
    """A pytree whose leaves are replaced by the values that they represent."""
    by = REPRESENTATION.get()
    if by is None:
        return x
    leaves, treedef = tree.flatten(x)
    found = [by.plain(leaf) for leaf in leaves]
    changed = any(a is not b for a, b in zip(leaves, found, strict=True))
    return tree.unflatten(treedef, found) if changed else x


def number(x: Any) -> Any:
    """A value as `float` and `int` see it."""
    by = REPRESENTATION.get()
    return x if by is None else by.number(x)


def represented(x: Any) -> Any:
    """A value as the program has it; numbers of the trace stay what they are."""
    by = REPRESENTATION.get()
    if by is None:
        return x
    leaves, treedef = tree.flatten(x)
    if not any(map(is_traced, leaves)):
        return x
    found = [by.represented(leaf) if isinstance(leaf, Tensor) and not leaf.weak else leaf for leaf in leaves]
    return tree.unflatten(treedef, found)


# In the place of an element `x[i]`, where x itself is a variable too: assigned to an element it changes nothing.
SAME: Any = type("Same", (), {"__repr__": lambda self: "the element as it is"})()


def state_of(get: GetState, set: SetState, names: Sequence[str]) -> tuple[GetState, SetState]:
    """The functions that read and write variables, for variables as control flow sees them."""
    by = REPRESENTATION.get()
    if by is None:
        return get, set

    # By variable and place in it: the objects that were read, and the values that they stood for.
    known: dict[tuple[int, int], list[tuple[Any, Any]]] = {}

    order = list(names)
    whole = {i: order.index(b) for i, name in enumerate(order) if (b := name.split("[")[0]) in order and b != name}

    def read() -> tuple[Any, ...]:
        found, given = [], get()
        for position, x in enumerate(given):
            if position in whole and by.plain(held := given[whole[position]]) is not held:
                found.append(SAME)
                continue
            leaves, treedef = tree.flatten(x)
            values = list(map(by.plain, leaves))
            for i, pair in enumerate(zip(leaves, values, strict=True)):
                if pair[0] is not pair[1]:
                    known.setdefault((position, i), []).append(pair)
            found.append(tree.unflatten(treedef, values) if known else x)
        return tuple(found)

    def stand(position: int, i: int, value: Any) -> Any:
        for x, was in known.get((position, i), ()):
            is_same = (
                value.value is was.value if isinstance(value, Tensor) and isinstance(was, Tensor) else value is was
            )
            if is_same:
                return x if by.stands(x, value) else by.represented(value)
        return by.represented(value) if isinstance(value, Tensor) and not value.weak else value

    def write(values: Sequence[Any]) -> None:
        written = []
        for position, x in enumerate(values):
            leaves, treedef = tree.flatten(x)
            stood = [stand(position, i, leaf) for i, leaf in enumerate(leaves)]
            changed = any(a is not b for a, b in zip(leaves, stood, strict=True))
            written.append(tree.unflatten(treedef, stood) if changed else x)
        set(tuple(written))

    return read, write


def truth(x: Tensor, construct: str, source: Source | None) -> Tensor:
    """The truth of a tensor with one element, as a bool scalar: for a number, whether it is not zero."""
    if x.weak:
        note_number()
    t = x.type
    if not isinstance(t, TensorType) or any(d != 1 for d in t.shape):
        raise TypeMismatchError(
            f"autograph: the condition of {construct} is not a scalar",
            source=source,
            expected="bool[], or one number",
            got=str(t),
            hint="reduce it with numpy.any or numpy.all; choose elementwise with numpy.where, numpy.logical_and,\n"
            "numpy.logical_or and numpy.logical_not",
        )
    scalar: Any = FUNCTIONS["reshape"](x, ()) if t.rank else x
    return scalar if t.dtype == bool else FUNCTIONS["not_equal"](scalar, 0)  # type: ignore[no-any-return]


# Variables without a value: placeholders of generated code for names that Python would leave unbound.
#
# A variable that only one branch or only the body of a traced loop sets has no value afterwards that a graph
# could know to exist. It becomes `Undefined` with a reason, and reading it is the error; not reading it is none.
#
# Where a branch leaves such a variable without a value because it returns, breaks or continues, what follows runs
# under the flag that says so. It becomes `Guarded`: a value, beside the conditions of which each says that there is
# one. Reading it is no error where a branch around the read has decided one of them.


_FLAG = re.compile(r"(do_return|break_|continue_)(_\d+)?")
_RETURN_VALUE = re.compile(r"retval_(_\d+)?")


class Undefined:
    """A variable without a value; `reason` says why, where Python itself would have had one."""

    __slots__ = ("name", "reason")

    def __init__(self, name: str, reason: str | None = None) -> None:
        self.name = name
        self.reason = reason

    def read(self) -> Any:
        if self.reason is None:
            raise UnboundLocalError(
                f"cannot access local variable '{self.name}' where it is not associated with a value"
            )
        raise TracingError(
            f"the variable `{self.name}` may have no value here",
            expected="a value on every path, because which one is taken is known only when the program runs",
            got=f"`{self.name}` {self.reason}",
            hint=f"give `{self.name}` a value of the same dtype and shape before that statement",
        )

    def __repr__(self) -> str:
        return f"<no value: {self.name}>"


# Bool values that the enclosing branches imply, with their truth.
_decisions: ContextVar[Mapping[Value, bool]] = ContextVar("decisions", default=MappingProxyType({}))


def decided(known: Mapping[Value, bool]) -> AbstractContextManager[None]:
    """Add these values to the decided ones while the block runs."""
    return holding(_decisions, {**_decisions.get(), **known})


class Guarded(Undefined):
    """A variable that has a value if any condition holds: a bool value of the graph with its required truth."""

    __slots__ = ("conditions", "value")

    def __init__(self, name: str, reason: str | None, value: Any, conditions: frozenset[tuple[Value, bool]]) -> None:
        super().__init__(name, reason)
        self.value = value
        self.conditions = conditions

    def read(self) -> Any:
        found = where_decided(self)
        return super().read() if found is self else found


def where_decided(x: Any) -> Any:
    """Return a variable's value if the enclosing branches imply that it has one; otherwise the variable unchanged."""
    if isinstance(x, Guarded) and not x.conditions.isdisjoint(_decisions.get().items()):
        return x.value
    return x


class UndefinedReturnValue:
    """The return value of a function that has not returned yet."""

    def __repr__(self) -> str:
        return "<not returned>"


def ld(value: Any) -> Any:
    """Read a variable."""
    return value.read() if isinstance(value, Undefined) else value


def ldu(read: Callable[[], Any], name: str) -> Any:
    """Read an attribute or an item that may not exist (yet)."""
    try:
        return read()
    except Exception:
        # Whatever goes wrong, the item has no value; the statement that reads it in earnest will say why.
        return Undefined(name)


def is_flag(name: str) -> bool:
    """Return true if a variable is a generated flag for `return`, `break` or `continue`."""
    return _FLAG.fullmatch(name) is not None


def is_return_value(name: str) -> bool:
    return _RETURN_VALUE.fullmatch(name) is not None


def shown(name: str) -> str:
    """Name of a variable in errors."""
    return (
        "the return value" if is_return_value(name) else f"the variable `{name}`" if name[:1] != " " else name.strip()
    )


_CONSTANTS = (bool, int, float, complex, str, bytes, type(None))


def is_array(x: Any) -> bool:
    """Return true if x is a tensor or could become one: an array or a number of a dtype that graphs hold."""
    if isinstance(x, Tensor | EagerStack | bool | int | float | complex):
        return True
    if not isinstance(x, np.ndarray | np.generic) and not hasattr(x, "__array__"):
        return False
    try:
        type_of(x)
    except CtrlgradError:
        return False
    return True


def same(a: Any, b: Any) -> bool:
    """Return true if two leaves are known to be the same value without running anything."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.value is b.value
    if isinstance(a, _CONSTANTS):
        return bool(a == b)
    if isinstance(a, np.ndarray | EagerStack):
        return False
    try:
        return (a == b) is True
    except Exception:
        return False


def describe(value: Any) -> str:
    """A value as errors show it."""
    if isinstance(value, Undefined | UndefinedReturnValue):
        return "no value"
    if value is None:
        return "None"
    if isinstance(value, tuple | list):
        inside = ", ".join(describe(x) for x in value[:6]) + (", ..." if len(value) > 6 else "")
        return f"({inside})" if isinstance(value, tuple) else f"[{inside}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {describe(x)}" for key, x in list(value.items())[:6]) + "}"
    if is_array(value):
        return type_name(value)
    return repr(value) if isinstance(value, str | bytes) else f"a {type(value).__name__}"


def zeros_value(builder: Builder, t: Type) -> Value:
    """Zeros of a type, in place of a value that will not be used; unknown dimensions are empty."""
    if isinstance(t, StackType):
        return builder.emit("stack_new", (), {"element": t.element})
    return builder.constant(zeros_array(t))


def zeros_array(t: Type) -> Any:
    """As `zeros_value`, as an array outside of any trace."""
    if isinstance(t, StackType):
        return EagerStack(t, [])
    return np.zeros([d or 0 for d in t.shape], t.dtype)


def leaf_paths(name: str, treedef: tree.TreeDef) -> list[str]:
    """`y[0]` for the leaves of the variable `y`."""
    return [name + path for path in tree.paths(treedef)]


def weaken(x: Any, weak: bool) -> Any:
    """A tensor marked as standing for a Python number, or not."""
    return Tensor(x.builder, x.value, weak) if isinstance(x, Tensor) and x.weak != weak else x


# Lists, dicts and sets, which traced control flow must not change.
#
# A body that is traced runs once in Python however often it runs later, so `rows.append(x)` inside it would
# happen once, with a tensor that has no meaning outside. `unchanged` watches what the body's closure holds, puts
# back what was changed, and says which variable it was.


_Container = list[Any] | dict[Any, Any] | set[Any]


class _Snapshot:
    """A container and its former contents."""

    def __init__(self, name: str, container: _Container) -> None:
        self.name = name
        self.container = container
        self.before = container.copy()

    def is_intact(self) -> bool:
        now, before = self.container, self.before
        if isinstance(now, dict) and isinstance(before, dict):
            return list(now) == list(before) and all(now[key] is before[key] for key in before)
        if isinstance(now, list) and isinstance(before, list):
            return len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))
        return now == before

    def restore(self) -> None:
        if isinstance(self.container, list):
            self.container[:] = self.before
        else:
            self.container.clear()
            self.container.update(self.before)


def _inside(name: str, value: Any, seen: set[int]) -> Iterator[_Snapshot]:
    """The containers in a value, down to those inside other containers."""
    if isinstance(value, list | dict | set) and id(value) not in seen:
        seen.add(id(value))
        yield _Snapshot(name, value)
    if isinstance(value, list | tuple):
        for x in value:
            if isinstance(x, list | dict | set | tuple):
                yield from _inside(name, x, seen)
    elif isinstance(value, dict):
        for x in value.values():
            if isinstance(x, list | dict | set | tuple):
                yield from _inside(name, x, seen)


class _Variable:
    """A variable of an enclosing function that inner functions share, and its former value."""

    def __init__(self, name: str, cell: CellType) -> None:
        self.name = name
        self.cell = cell
        self.before = cell.cell_contents

    def is_intact(self) -> bool:
        return self.cell.cell_contents is self.before

    def restore(self) -> None:
        self.cell.cell_contents = self.before


def _reachable(functions: Iterable[Any], seen: set[int]) -> Iterator[_Snapshot | _Variable]:
    """Yield the variables and containers that functions share with enclosing code, through functions among them too."""
    for fn in functions:
        if not isinstance(fn, FunctionType) or id(fn) in seen:
            continue
        seen.add(id(fn))
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            if id(cell) not in seen:
                seen.add(id(cell))
                yield _Variable(name, cell)
            yield from _inside(name, value, seen)
            yield from _reachable([value], seen)


def cells_of(names: Iterable[str], *functions: Callable[..., Any]) -> tuple[CellType, ...]:
    """The variables of these names that functions share with the code around them."""
    wanted, found = set(names), []
    for fn in functions:
        closure = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
        found += [cell for name, cell in closure if name in wanted]
    return tuple(found)


@contextmanager
def unchanged(
    construct: str, source: Source | None, *functions: Callable[..., Any], own: Collection[CellType] = ()
) -> Iterator[None]:
    """Refuse changes to what the functions share with the code around them while they are traced.

    When the block ends, the shared variables must hold the same values as before. The statement's `own` variables,
    which only the statement itself assigns and reads, are restored without an error.
    """
    watched = list(_reachable(functions, set()))
    yield
    changed = [x for x in watched if not x.is_intact()]
    for x in changed:
        x.restore()
    changed = [x for x in changed if not (isinstance(x, _Variable) and any(x.cell is cell for cell in own))]
    if not changed:
        return
    first = changed[0]
    if isinstance(first, _Variable):
        raise TracingError(
            f"the variable `{first.name}` is changed by a function called inside {construct} on a traced tensor",
            source=source,
            expected="changes that stand in the loop or branch itself",
            got=f"a function that assigns `{first.name}` as `nonlocal`",
            hint=f"let the function return the new value, and assign it: {first.name} = ...",
        )
    kind = type(first.container).__name__
    raise TracingError(
        f"the {kind} `{first.name}` changes inside {construct} on a traced tensor",
        source=source,
        expected="variables that are assigned anew, holding tensors",
        got=f"a {kind} that is changed in place, which would happen once, while tracing",
        hint="collect rows with ctrlgrad.TensorArray or ctrlgrad.scan, or keep the loop or branch in Python\n"
        "by deciding on a Python value, as `for i in range(len(xs))` does in place of `for x in xs`",
    )
