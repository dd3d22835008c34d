"""Small models of ONNX as functions, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, parser

import ctrlgrad as cg


def model(text: str, version: int = 21, more: str = "") -> Any:
    """A function of a model in ONNX's own text."""
    domains = f'"" : {version}, "own" : 1'
    return cg.from_onnx(parser.parse_model(f"<ir_version: 10, opset_import: [{domains}]>\n{text}\n{more}"))


def one_node(op: str, inputs: list[Any], outputs: int = 1, version: int = 21, **attributes: Any) -> Any:
    """A function of a model of one node; None for an input that is left out. All are float64 or int32."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    dtype = {"f": TensorProto.DOUBLE, "i": TensorProto.INT32, "b": TensorProto.BOOL}
    infos = [
        helper.make_tensor_value_info(n, dtype[x.dtype.kind], x.shape) for n, x in zip(names, inputs, strict=True) if n
    ]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, names, results, **attributes)
    found = [helper.make_tensor_value_info(n, TensorProto.DOUBLE, None) for n in results]
    graph = helper.make_graph([node], "g", infos, found)
    return cg.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)]))


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)
