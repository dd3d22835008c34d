"""An ONNX model as a function of this library."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from ctrlgrad import tree
from ctrlgrad.errors import UserInputError
from ctrlgrad.files import open_file
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.function import Function, function
from ctrlgrad.interop.onnx.operators import NeedsInputs
from ctrlgrad.interop.onnx.protos import array_of, dtype_of
from ctrlgrad.interop.onnx.reader import NOWHERE, Known, Model, Reader
from ctrlgrad.signature import Static
from ctrlgrad.source import here


class _Value:
    """An array that is part of a signature, by its numbers."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self._key = (array.dtype.str, array.shape, array.tobytes())

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Value) and self._key == other._key


class OnnxFunction:
    """A model as a function; made by `ctrlgrad.from_onnx`.

    Attributes:
        inputs: the names of its arguments, in order.
        outputs: the names of its results.
        initializers: its weights by name; an argument of such a name takes the place of one.
    """

    def __init__(self, model: onnx.ModelProto, name: str) -> None:
        self._model, self._graph = Model.of(model, name), model.graph
        self.name = model.graph.name or "model"
        self.initializers: dict[str, np.ndarray] = {x.name: array_of(x) for x in model.graph.initializer}
        self.inputs = tuple(x.name for x in model.graph.input if x.name not in self.initializers)
        self.outputs = tuple(x.name for x in model.graph.output)
        self._types = {x.name: x.type for x in model.graph.input}
        # The inputs whose values operators need: they are part of the signature.
        self._needed: frozenset[str] = frozenset()
        self._function: Function = function(self._on_signature, name=self.name)

    def __repr__(self) -> str:
        return f"<{self.name} from ONNX: {', '.join(self.inputs)} -> {', '.join(self.outputs)}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = {name: self._argument(name, x) for name, x in self._bound(args, kwargs).items()}
        if trace.current() is not None:
            return self._read(given, may_ask=False)
        while True:
            needed = self._needed
            fixed = {name: tree.map(_Value, x) for name, x in given.items() if name in needed}
            free = {name: x for name, x in given.items() if name not in needed}
            # One graph for each set of sizes: models compute with them.
            sizes = tuple(np.shape(x) for x in tree.leaves(free))
            try:
                return self._function(free, tree.map(lambda x: Static(x, _Value), fixed), Static(sizes, tuple))
            except NeedsInputs as found:
                self._needed = needed | found.names

    def _on_signature(self, free: Mapping[str, Any], fixed: Mapping[str, Any], _: Any) -> Any:
        known = {name: tree.map(lambda x: x.array, x) for name, x in fixed.items()}
        return self._read({**free, **known}, may_ask=True)

    def _read(self, given: Mapping[str, Any], may_ask: bool) -> Any:
        values = {name: Known(x, frozenset([name]) if _has_tensors(x) else NOWHERE) for name, x in given.items()}
        found = [x.value for x in Reader(self._model, may_ask).graph(self._graph, values)]
        return found[0] if len(found) == 1 else tuple(found)

    def _bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name."""
        given = dict(zip(self.inputs, args, strict=False))
        twice = sorted(given.keys() & kwargs.keys())
        unknown = sorted(kwargs.keys() - set(self.inputs) - self.initializers.keys())
        missing = [name for name in self.inputs if name not in given and name not in kwargs]
        if len(args) > len(self.inputs) or twice or unknown or missing:
            found = [f"{len(args)} by position", *(f"{name} by name" for name in kwargs)]
            raise UserInputError(
                f"from_onnx: {self.name} is called with arguments that are not its inputs",
                source=here(),
                expected=", ".join(self.inputs) or "no arguments",
                got=", ".join(found),
                hint=f"pass {', '.join(missing)}"
                if missing
                else "pass each input once; a weight may be passed by its name in .initializers",
            )
        return given | dict(kwargs)

    def _argument(self, name: str, x: Any) -> Any:
        """An argument as the model has it: Python numbers and lists of an input that is a tensor become arrays."""
        if name not in self._types or not self._types[name].HasField("tensor_type"):
            return tree.map(lambda leaf: leaf if isinstance(leaf, Tensor) else np.asarray(leaf), x)
        dtype = dtype_of(self._types[name].tensor_type.elem_type)
        if isinstance(x, Tensor):
            return x
        array = np.asarray(x)
        return array if isinstance(x, np.ndarray | np.generic) else array.astype(dtype)


def _has_tensors(x: Any) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in tree.leaves(x))


def read_model(model: Any) -> tuple[onnx.ModelProto, str]:
    """A model, and how errors call it."""
    name = str(model) if isinstance(model, str | os.PathLike) else "ONNX model"
    found = None
    try:
        if isinstance(model, onnx.ModelProto):
            found = model
        elif isinstance(model, bytes):
            found = onnx.load_model_from_string(model)
        elif isinstance(model, str | os.PathLike):
            open_file(model).close()
            found = onnx.load(os.fspath(model))
    except DecodeError as error:
        raise _no_model(model, str(error)) from error
    if found is not None:
        # No bytes at all are those of an empty message.
        if not found.graph.output:
            raise _no_model(model, "a message without a graph that has outputs")
        return found, name
    raise UserInputError(
        "from_onnx: the argument is no model",
        source=here(),
        expected="an onnx.ModelProto, its bytes, or the path of a file",
        got=type(model).__name__,
        hint="model = onnx.load(path)",
    )


def _no_model(model: Any, reason: str) -> UserInputError:
    what = model if isinstance(model, str | os.PathLike) else type(model).__name__
    return UserInputError(
        "from_onnx: this is no ONNX model",
        source=here(),
        expected="the bytes of an onnx.ModelProto, as onnx.save writes them",
        got=f"{what}: {reason}",
        hint="a file of weights alone, or one cut short, is none: onnx.checker.check_model(path) judges a file",
    )
