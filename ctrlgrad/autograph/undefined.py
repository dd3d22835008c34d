"""Variables without a value: what generated code puts where Python would have no binding.

A variable that only one branch or only the body of a traced loop sets has no value afterwards that a graph
could know to exist. It becomes `Undefined` with a reason, and reading it is the error; not reading it is none.

Where a branch leaves such a variable without a value because it returns, breaks or continues, what follows runs under
the flag that says so. It becomes `Guarded`: a value, beside the conditions of which each says that there is one.
Reading it is no error where a branch around the read has decided one of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from ctrlgrad.errors import TracingError
from ctrlgrad.ir import Value

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


# Bool values that the enclosing branches decide, with their truth there.
_decisions: ContextVar[Mapping[Value, bool]] = ContextVar("decisions", default=MappingProxyType({}))


@contextmanager
def decided(known: Mapping[Value, bool]) -> Iterator[None]:
    """Add these values to the decided ones while the block runs."""
    token = _decisions.set({**_decisions.get(), **known})
    try:
        yield
    finally:
        _decisions.reset(token)


class Guarded(Undefined):
    """A variable that has a value where any of the conditions holds: that a bool value is what stands beside it."""

    __slots__ = ("conditions", "value")

    def __init__(self, name: str, reason: str | None, value: Any, conditions: frozenset[tuple[Value, bool]]) -> None:
        super().__init__(name, reason)
        self.value = value
        self.conditions = conditions

    def read(self) -> Any:
        found = where_decided(self)
        return super().read() if found is self else found


def where_decided(x: Any) -> Any:
    """Return a variable's value if the enclosing branches decide that it has one; otherwise the variable as it is."""
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
