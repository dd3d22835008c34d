"""ONNX's own node tests: loops, branches, sequences, recurrent networks, what these need, spectra, images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("onnx")

import ctrlgrad as cg
from tests.onnx_suite import cases, outcomes

FAMILIES = """loop if_ scan rangeop sequence_map sequenceinsert splittosequence optionalgetelement optionalhaselement
lstm gru rnn softmax layernormalization gather gatherelements gathernd scatterelements scatternd slice concat expand
reshape transpose where topk cumsum nonzero einsum gemm matmul pad tile split squeeze unsqueeze
resize upsample col2im maxpool maxunpool dft stft melweightmatrix qlinearconv qlinearmatmul matmulinteger convinteger
quantizelinear dequantizelinear dynamicquantizelinear dropout gridsample
momentum adam adagrad"""


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    with cg.options(engine="reference"):
        yield


# Types of ONNX that this library lacks.
TYPES = ("float8", "e4m3", "e5m2", "float4", "int4", "int2")


@pytest.mark.parametrize("family", FAMILIES.split())
def test_nodes(family: str) -> None:
    # ONNX computes what it expects where it makes the cases: a family's are made by the test that runs them.
    chosen = [case for case in cases([family]) if not any(word in case.name for word in TYPES)]
    assert chosen
    others = [(name, outcome, why) for name, outcome, why in outcomes(chosen) if outcome != "passed"]
    assert not others


def test_a_wrong_result_is_seen() -> None:
    case: Any = next(case for case in cases(["loop"]) if case.name == "test_loop11")
    ((inputs, outputs),) = case.data_sets
    wrong = [x + 1 for x in outputs]
    changed = type(case)(**{**vars(case), "data_sets": [(inputs, wrong)]})
    assert [outcome for _, outcome, _ in outcomes([changed])] == ["failed"]
