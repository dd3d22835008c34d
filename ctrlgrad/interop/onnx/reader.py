"""Reading an ONNX graph: its nodes, one by one, as calls of this library's functions.

A graph is read inside of a trace. Values are traced tensors, or arrays where all that they depend on is known, so what
a model computes of shapes and constants is computed here and now; a sequence is a list, an empty optional is None.
Beside each value stands which inputs of the model it follows from (`Node.origins`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, defs, helper

from ctrlgrad import tree
from ctrlgrad.errors import UserInputError, locate
from ctrlgrad.files import open_file
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.function import Function, function
from ctrlgrad.interop.onnx import arrays, control, layers, numbers  # noqa: F401  (they fill the table)
from ctrlgrad.interop.onnx.operators import (
    REFUSED,
    TABLE,
    Body,
    NeedsInputs,
    Node,
    array_of,
    attribute,
    dtype_of,
    known_shape,
    type_proto,
)
from ctrlgrad.signature import Static
from ctrlgrad.source import Source, read_from

Origins = frozenset[str] | None
NOWHERE: Origins = frozenset()


@dataclass(frozen=True)
class Known:
    """A value, and the inputs of the model that it follows from."""

    value: Any
    origins: Origins


@dataclass(frozen=True, eq=False)
class Model:
    """A model's functions, and the versions of the operator sets that it uses."""

    name: str
    versions: Mapping[str, int]
    functions: Mapping[tuple[str, str, str], FunctionProto]

    @classmethod
    def of(cls, model: onnx.ModelProto, name: str) -> Model:
        versions = {_domain(x.domain): x.version for x in model.opset_import}
        functions = {(_domain(f.domain), f.name, f.overload): f for f in model.functions}
        return cls(name, versions, functions)


class Scope:
    """Values by name, in a graph and in those around it."""

    def __init__(self, around: Scope | None = None) -> None:
        self.around, self.values = around, dict[str, Known]()

    def get(self, name: str) -> Known | None:
        found = self.values.get(name)
        return self.around.get(name) if found is None and self.around is not None else found

    def find(self, name: str) -> Known:
        found = self.get(name)
        if found is None:
            raise UserInputError(
                f"from_onnx: the value {name!r} is used before a node computes it",
                expected="nodes in an order in which each uses inputs, initializers and results of nodes before it",
                got=f"{name!r}: a cycle, another order of nodes, or a name that is not there",
                hint="onnx.checker.check_model(model) judges a model",
            )
        return found


@dataclass(frozen=True, eq=False)
class Reader:
    """Reads graphs, or the body of a function with the attributes of the node that calls it."""

    model: Model
    # True if the inputs of the model have values that operators may ask for.
    may_ask: bool
    given: Mapping[str, Any] | None = None
    # The model's functions that are being read, the outermost first.
    calls: tuple[tuple[str, str, str], ...] = ()

    def graph(self, graph: GraphProto, values: Mapping[str, Known], around: Scope | None = None) -> list[Known]:
        """The results of a graph for these values of its inputs."""
        scope = Scope(around)
        for tensor in graph.initializer:
            scope.values[tensor.name] = Known(array_of(tensor), NOWHERE)
        for sparse in graph.sparse_initializer:
            proto = AttributeProto(type=AttributeProto.SPARSE_TENSOR, sparse_tensor=sparse)
            scope.values[sparse.values.name] = Known(attribute(proto), NOWHERE)
        scope.values.update(values)
        self.nodes(graph.node, scope, graph.name)
        return [scope.find(x.name) for x in graph.output]

    def nodes(self, nodes: Sequence[NodeProto], scope: Scope, place: str) -> None:
        for number, proto in enumerate(nodes):
            source = Source(f"{self.model.name}, graph {place!r}, node", number, _title(proto))
            with read_from(source):
                try:
                    results = self.node(proto, scope, source)
                except NeedsInputs:
                    raise
                except Exception as error:
                    locate(error, f"ONNX's {proto.op_type}", source)
                    raise
            scope.values.update({name: x for name, x in zip(proto.output, results, strict=False) if name})

    def node(self, proto: NodeProto, scope: Scope, source: Source) -> list[Known]:
        """The results of one node."""
        domain = _domain(proto.domain)
        version = self.model.versions.get(domain, 1)
        inputs = [scope.find(name) if name else Known(None, NOWHERE) for name in proto.input]
        values = tuple(x.value for x in inputs)
        schema = _schema(proto.op_type, version, domain)
        attributes: dict[str, Any] = dict(_defaults(schema))
        for a in proto.attribute:
            if a.ref_attr_name:
                if self.given is not None and a.ref_attr_name in self.given:
                    attributes[a.name] = self.given[a.ref_attr_name]
            else:
                value = attribute(a)
                attributes[a.name] = self._body(value, scope) if isinstance(value, GraphProto) else value
        captured = [x for x in map(scope.get, _captured(proto)) if x is not None]
        node = Node(
            proto.op_type,
            domain,
            version,
            attributes,
            len(proto.output),
            tuple(map(bool, proto.output)),
            values,
            tuple(x.origins for x in inputs),
            self.may_ask,
            source,
        )
        origins = _join([x.origins for x in (*inputs, *captured)])
        results = self._results(proto, node)
        results = list(results) if isinstance(results, tuple) else [results]
        return [Known(x, origins if _follows(x) else None) for x in results]

    def _results(self, proto: NodeProto, node: Node) -> Any:
        key = (node.domain, node.name)
        # A function of the model's own comes before what a name means elsewhere.
        own = self.model.functions.get((*key, proto.overload))
        if own is not None:
            return self._call(own, node)
        if key in TABLE:
            return TABLE[key](node, *node.inputs)
        refused = REFUSED.get(node.name) if not node.domain else None
        body = None if refused else _body_of(proto, node)
        if body is None:
            raise node.unsupported(refused)
        return self._call(body, node)

    def _call(self, function: FunctionProto, node: Node) -> tuple[Any, ...]:
        """The results of a function's nodes: it sees its inputs and attributes alone."""
        key = (_domain(function.domain), function.name, function.overload)
        if key in self.calls:
            raise UserInputError(
                f"from_onnx: the function {function.name!r} of the model calls itself",
                source=node.source,
                expected="functions that do not call themselves, directly or through other functions",
                got=" -> ".join(name for _, name, _ in (*self.calls, key)),
                hint="onnx.checker.check_model(model) judges a model; Loop repeats a graph",
            )
        scope = Scope()
        for position, name in enumerate(function.input):
            given = position < len(node.inputs)
            known = Known(node.inputs[position], node.origins[position]) if given else Known(None, NOWHERE)
            scope.values[name] = known
        versions = {_domain(x.domain): x.version for x in function.opset_import}
        defaults = {a.name: attribute(a) for a in function.attribute_proto}
        model = Model(self.model.name, {**self.model.versions, **versions}, self.model.functions)
        attributes = {**defaults, **{k: v for k, v in node.attributes.items() if v is not None}}
        Reader(model, self.may_ask, attributes, (*self.calls, key)).nodes(function.node, scope, function.name)
        # An output that is left out may have no node.
        found = map(scope.get, function.output)
        return tuple(None if x is None else x.value for x in found)

    def _body(self, graph: GraphProto, around: Scope) -> Body:
        names = tuple(x.name for x in graph.input)

        def read(*inputs: Any) -> list[Any]:
            # A traced carry of a loop is known only at run time; a constant stays known.
            values = {name: Known(x, None if _traced(x) else NOWHERE) for name, x in zip(names, inputs, strict=True)}
            return [x.value for x in self.graph(graph, values, around)]

        return Body(names, len(graph.output), read)


def _traced(x: Any) -> bool:
    return any(map(_traced, x)) if isinstance(x, list) else isinstance(x, Tensor)


def _follows(x: Any) -> bool:
    """True if a value is known once its operands are; not if its size depends on the run."""
    if isinstance(x, list):
        return all(map(_follows, x))
    return not isinstance(x, Tensor) or None not in known_shape(x)


def _join(origins: Sequence[Origins]) -> Origins:
    return None if any(x is None for x in origins) else frozenset[str]().union(*[x for x in origins if x is not None])


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _title(proto: NodeProto) -> str:
    return f"{proto.op_type} {proto.name!r}" if proto.name else proto.op_type


def _captured(proto: NodeProto) -> set[str]:
    """The names that the graphs of a node may have from around it."""
    return {name for a in proto.attribute for graph in (a.g, *a.graphs) for name in _names(graph)}


def _names(graph: GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield from node.input
        yield from _captured(node)
    yield from (x.name for x in graph.output)


@functools.cache
def _schema(name: str, version: int, domain: str) -> Any:
    try:
        return defs.get_schema(name, version, domain)
    except defs.SchemaError:
        return None


@functools.cache
def _defaults(schema: Any) -> Mapping[str, Any]:
    """The attributes of an operator that have a default."""
    if schema is None:
        return {}
    protos = {name: a.default_value for name, a in schema.attributes.items() if a.default_value.name}
    return {name: attribute(proto) for name, proto in protos.items()}


def _body_of(proto: NodeProto, node: Node) -> FunctionProto | None:
    """The function that ONNX defines an operator by, if it does."""
    schema = _schema(node.name, node.version, node.domain)
    if schema is None:
        return None
    if schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= node.version]
        text = schema.get_function_with_opset_version(max(versions)) if versions else b""
        return FunctionProto.FromString(text) if text else None
    if schema.has_context_dependent_function:
        types = [type_proto(x).SerializeToString() for x in node.inputs]
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= node.version]
        if not versions:
            return None
        # A node in a function's body may take its attributes from the function's.
        plain = helper.make_node(node.name, proto.input, proto.output, domain=node.domain)
        plain.attribute.extend(_written(name, x) for name, x in node.attributes.items() if not isinstance(x, Body))
        plain.attribute.extend(a for a in proto.attribute if a.type == AttributeProto.GRAPH)
        text = schema.get_context_dependent_function_with_opset_version(max(versions), plain.SerializeToString(), types)
        return FunctionProto.FromString(text) if text else None
    return None


def _written(name: str, value: Any) -> AttributeProto:
    if isinstance(value, np.ndarray):
        return helper.make_attribute(name, onnx.numpy_helper.from_array(value))
    return helper.make_attribute(name, value)


# An ONNX model as a function of this library.


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
        expected="an onnx.ModelProto, its bytes, or the path of a file",
        got=type(model).__name__,
        hint="model = onnx.load(path)",
    )


def _no_model(model: Any, reason: str) -> UserInputError:
    what = model if isinstance(model, str | os.PathLike) else type(model).__name__
    return UserInputError(
        "from_onnx: this is no ONNX model",
        expected="the bytes of an onnx.ModelProto, as onnx.save writes them",
        got=f"{what}: {reason}",
        hint="a file of weights alone, or one cut short, is none: onnx.checker.check_model(path) judges a file",
    )
