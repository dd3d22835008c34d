"""Every elementwise op has an expression for every dtype that its type rule accepts."""

import numpy as np
import pytest
from elementwise_signatures import NAMES, expression_of, part_of, parts, signatures

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.plan.elementary.table import all_elementary
from ctrlgrad.plan.elementwise import NoExpression, elementwise_expression, failure
from ctrlgrad.plan.expression import PRIMITIVES, ExpressionBuilder

BOOL = np.dtype(bool)


@pytest.mark.parametrize("name", NAMES)
def test_the_result_has_the_dtype_of_the_type_rule(name):
    found = 0
    for dtypes, result in signatures(name):
        expression = expression_of(name, dtypes, result)
        outputs = [expression.instructions[output].dtype for output in expression.outputs]
        assert outputs == [part_of(result)] * parts(result), (dtypes, result)
        check(expression)
        found += 1
    assert found


@pytest.mark.parametrize("function", all_elementary(), ids=lambda f: f"{f.name}-{f.dtype}")
def test_elementary_functions_are_of_their_dtype(function):
    expression = function.expression
    dtypes = [expression.instructions[output].dtype for output in expression.outputs]
    assert dtypes == [function.dtype] + ([BOOL] if function.beyond else [])
    assert not [i for i in expression.instructions if i.op in ("load", "scalar", "index", "call")]
    check(expression)


def check(expression):
    """Check that arguments come before their uses and that dtypes are allowed by `PRIMITIVES`."""
    dtypes = []
    for number, instruction in enumerate(expression.instructions):
        assert all(0 <= a < number for a in instruction.args)
        args = [dtypes[a] for a in instruction.args]
        op, result = instruction.op, instruction.dtype
        if op == "select":
            assert args == [BOOL, result, result]
        elif op in ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"):
            assert result == BOOL
            assert args[0] == args[1]
            assert dtype_kind(args[0]) in PRIMITIVES["less"]
        elif op == "bits":
            assert args[0].itemsize == result.itemsize
        elif args and op not in ("convert", "call"):
            # Before the first colon stand the kinds; "iu: ..." after a semicolon is another rule.
            kinds = "".join(rule.split(":")[0] for rule in PRIMITIVES[op].split(";")).replace(" ", "")
            assert set(args) == {result}, op
            assert dtype_kind(result) in kinds, (op, result)
        dtypes.append(result)


def test_a_dtype_without_numbers_is_refused_by_name():
    dtype = np.dtype(np.longdouble)
    with pytest.raises(NoExpression, match=f"no numbers of dtype {dtype.name}"):
        elementwise_expression("exp", [dtype], dtype, ExpressionBuilder(), [None])


def test_only_a_negative_power_of_an_integer_is_an_error():
    builder = ExpressionBuilder()
    loads = {dtype: builder.emit("load", (), dtype, 0) for dtype in ("int32", "uint32", "float32")}
    found = {dtype: failure("integer_power", (x, x)) for dtype, x in loads.items() if dtype != "float32"}
    assert builder.instructions[found["int32"].number].op == "less"
    assert found["uint32"] is None
    assert failure("floor_divide", (loads["float32"],) * 2) is None
