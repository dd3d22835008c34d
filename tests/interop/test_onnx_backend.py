"""ONNX's own node tests: loops, branches, sequences, recurrent networks, what these need, spectra, images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("onnx")

import ctrlgrad as cg
from tests.onnx_suite import cases, check, outcomes

FAMILIES = """loop if_ scan rangeop sequence_map sequenceinsert splittosequence optionalgetelement optionalhaselement
lstm gru rnn softmax layernormalization gather gatherelements gathernd scatterelements scatternd slice concat expand
reshape transpose where topk cumsum nonzero einsum gemm matmul pad tile split squeeze unsqueeze
resize upsample col2im maxpool maxunpool dft stft melweightmatrix qlinearconv qlinearmatmul matmulinteger convinteger
quantizelinear dequantizelinear dynamicquantizelinear dropout gridsample
momentum adam adagrad"""
CASES = {case.name: case for case in cases(FAMILIES.split())}


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    with cg.options(engine="reference"):
        yield


# What ONNX has and this library has not.
_TYPES = ("float8", "e4m3", "e5m2", "float4", "int4", "int2")
REFUSED = {name for name in CASES if any(word in name for word in _TYPES)}


@pytest.mark.parametrize("name", sorted(CASES.keys() - REFUSED))
def test_a_node(name: str) -> None:
    check(CASES[name])


def test_a_wrong_result_is_seen() -> None:
    case: Any = CASES["test_loop11"]
    ((inputs, outputs),) = case.data_sets
    wrong = [x + 1 for x in outputs]
    changed = type(case)(**{**vars(case), "data_sets": [(inputs, wrong)]})
    assert [outcome for _, outcome, _ in outcomes([changed])] == ["failed"]
