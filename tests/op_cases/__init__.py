"""Every op on operands of every dtype that its type rule takes.

`MAKERS` gives the cases of an op whose operands are of a dtype; `cases_of` those that the rule takes.
"""

from functools import cache

import ctrlgrad.stacks  # noqa: F401  (declares the ops on stacks)
from op_cases import arrays, places
from op_cases.case import DTYPES, FEW_DTYPES, Maker, OpCase

MAKERS: dict[str, Maker] = arrays.MAKERS | places.MAKERS


def cases_of(op: str, dtypes: tuple[str, ...] = DTYPES) -> list[OpCase]:
    return [case for dtype in dtypes for case in _cases(op, dtype)]


@cache
def _cases(op: str, dtype: str) -> tuple[OpCase, ...]:
    return tuple(case for case in MAKERS[op](dtype) if case.is_accepted)


__all__ = ["DTYPES", "FEW_DTYPES", "MAKERS", "OpCase", "cases_of"]
