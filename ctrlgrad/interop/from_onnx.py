"""`from_onnx`: a model of ONNX as a function of this library."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from ctrlgrad.advice import explains_calls

if TYPE_CHECKING:
    from ctrlgrad.interop.onnx.reader import OnnxFunction


@explains_calls
def from_onnx(model: Any) -> OnnxFunction:
    """A model of ONNX as a function of this library: `grad`, `vmap` and `jvp` take it, loops and branches included.

    Its nodes are read one by one when the function is called, once for each set of dtypes and sizes. `Loop`, `Scan` and
    `If` become loops and branches here, sequences lists, empty optionals None. What follows from constants and sizes is
    computed when the model is read. Where an operator needs the value of an input (the shape that `Reshape` is given),
    that input is part of the signature: one graph for each value. docs/onnx_operators.md lists the operators;
    `ctrlgrad.interop.onnx_op` adds further ones.

    Args:
        model: an `onnx.ModelProto`, its bytes, or the path of a file.

    Returns:
        A function of the model's inputs, by position or by name, to its output, or to a tuple of several. A weight may
        be passed by name too, in place of the model's own: `.initializers` has them all, so that
        `grad(lambda weights: loss(f(x, **weights)))` is the gradient by all weights.

    Raises:
        ImportError: the package onnx is not installed.
        UserInputError: the argument is no model; when called, the arguments are not the model's inputs.
        UnsupportedPrimitiveError (when called): an operator has no translation; it names the node.
        TracingError (when called): an operator needs a value that is known only when the model runs.

    >>> from onnx import parser
    >>> f = cg.from_onnx(parser.parse_model('''
    ...     <ir_version: 8, opset_import: ["" : 17]>
    ...     doubled_until_large (float x) => (float y) {
    ...         most = Constant <value_int = 100> ()
    ...         start = Constant <value = bool {1}> ()
    ...         y = Loop (most, start, x) <body = step (int64 i, bool go, float c)
    ...                                           => (bool more, float d) {
    ...             d = Add (c, c)
    ...             limit = Constant <value_float = 10.0> ()
    ...             more = Less (d, limit)
    ...         }>
    ...     }'''))
    >>> f(np.float32(3.0)), cg.grad(f)(np.float32(3.0))
    (array(12., dtype=float32), array(4., dtype=float32))
    """
    if importlib.util.find_spec("onnx") is None:
        raise ImportError("ctrlgrad.from_onnx needs onnx, which is not installed: pip install -e '.[onnx]'")
    from ctrlgrad.interop.onnx.reader import OnnxFunction, read_model

    return OnnxFunction(*read_model(model))
