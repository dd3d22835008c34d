"""A function or module of PyTorch as a function of this library."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch.fx import GraphModule, Node
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree

from ctrlgrad import forks, tree
from ctrlgrad.autograph import convert
from ctrlgrad.blocks import holding
from ctrlgrad.errors import CtrlgradError, TracingError, UserInputError, locate
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.apply import cast, type_of
from ctrlgrad.frontend.branches import cond
from ctrlgrad.frontend.loops import associative_scan, scan, while_loop
from ctrlgrad.frontend.loops import map as map_rows
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.function import Function, function
from ctrlgrad.interop.torch.control import install
from ctrlgrad.interop.torch.entries import arguments, find, name_of, promoted, unsupported
from ctrlgrad.interop.torch.operators import DRAWS, Draws
from ctrlgrad.interop.torch.tensors import DTYPES, to_array
from ctrlgrad.interop.torch.tracing import Trace
from ctrlgrad.interop.torch.values import TracedTensor, value_of
from ctrlgrad.ir import TensorType
from ctrlgrad.signature import Static
from ctrlgrad.source import Source, here, is_own, read_from

# Reading a program that `torch.export` has captured: the nodes of its graph, one by one, by the table.
#
# Values are traced tensors, arrays where all that they depend on is known, and Python numbers; sizes that the program
# calls dynamic are numbers of the trace. Errors and recorded ops name the user's line that made the node.


_TORCH_FILES = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "")
_LINE = re.compile(r'File "(.+)", line (\d+), in (.+)')


def decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions of the operators that the table does not have."""
    table: dict[Any, Callable[..., Any]] = torch.export.default_decompositions()
    return {op: fn for op, fn in table.items() if find(op) is None}


def source_of(node: Node) -> Source | None:
    """The line of the user's that made a node."""
    for file, line, name in reversed(_LINE.findall(node.meta.get("stack_trace") or "")):
        if not file.startswith(_TORCH_FILES) and not is_own(file):
            return Source(file, int(line), name)
    return None


def read(graph: GraphModule, *inputs: Any) -> list[Any]:
    """The results of a graph for these inputs."""
    values: dict[Node, Any] = {}
    given = iter(inputs)
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(given)
        elif node.op == "get_attr":
            values[node] = _attribute(graph, node.target)
        elif node.op == "output":
            found = torch.fx.node.map_arg(node.args[0], lambda n: values[n])
            return list(found) if isinstance(found, tuple | list) else [found]
        else:
            args = torch.fx.node.map_arg(node.args, lambda n: values[n])
            kwargs = torch.fx.node.map_arg(node.kwargs, lambda n: values[n])
            values[node] = _node(node, args, kwargs)
    raise AssertionError("a graph of torch.fx ends with its output")


def _attribute(graph: GraphModule, path: str) -> Any:
    found: Any = graph
    for name in path.split("."):
        found = getattr(found, name)
    return to_array(found) if isinstance(found, torch.Tensor) else found


def _node(node: Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    source = source_of(node)
    target: Any = node.target
    with read_from(source):
        try:
            if isinstance(target, torch._ops.HigherOrderOperator):
                higher = HIGHER.get(target.name())
                if higher is None:
                    raise unsupported(target.name(), source)
                return higher(*args, **kwargs)
            if not isinstance(target, torch._ops.OpOverload):
                return target(*args, **kwargs)
            entry = find(target)
            if entry is None:
                raise unsupported(name_of(target), source)
            stated = node.meta.get("val")
            first = stated[0] if isinstance(stated, tuple | list) and stated else stated
            dtype = DTYPES.get(first.dtype) if isinstance(first, torch.Tensor) else None
            given, named = arguments(args, kwargs)
            return _fitted(stated, entry(*promoted(target, given, dtype), **named))
        except Exception as error:
            locate(error, f"PyTorch's {target}", source)
            raise


def _fitted(stated: Any, found: Any) -> Any:
    """Results with the dtypes that PyTorch states."""
    if isinstance(stated, tuple | list):
        return [_fitted(x, y) for x, y in zip(stated, found, strict=False)]
    return cast(found, DTYPES[stated.dtype]) if isinstance(stated, torch.Tensor) else found


# Operators that own graphs, or functions.


def _called(fn: Any, *operands: Any) -> list[Any]:
    if isinstance(fn, GraphModule):
        return read(fn, *operands)
    found = fn(*operands)
    return list(found) if isinstance(found, tuple | list) else [found]


def _cond(predicate: Any, when_true: Any, when_false: Any, operands: Sequence[Any] = ()) -> Any:
    if not isinstance(predicate, Tensor):
        return _called(when_true if predicate else when_false, *operands)
    predicate = predicate.reshape(()) if predicate.ndim else predicate
    return cond(predicate, lambda *xs: _called(when_true, *xs), lambda *xs: _called(when_false, *xs), *operands)


def _while_loop(goes_on: Any, body: Any, carried: Sequence[Any], additional: Sequence[Any] = ()) -> Any:
    carry = list(carried)

    def test(c: list[Any]) -> Any:
        found = _called(goes_on, *c, *additional)[0]
        return found.reshape(()) if getattr(found, "ndim", 0) else found

    return while_loop(test, lambda c: _called(body, *c, *additional), carry)


def _scan(fn: Any, init: Sequence[Any], xs: Sequence[Any], additional: Sequence[Any] = ()) -> Any:
    init = list(init)

    def step(carry: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
        found = _called(fn, *carry, *row, *additional)
        return found[: len(init)], found[len(init) :]

    last, collected = scan(step, init, list(xs))
    return [*last, *collected]


HIGHER: dict[str, Callable[..., Any]] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "scan": _scan,
    "associative_scan": lambda fn, xs, additional=(): associative_scan(
        lambda a, b: _called(fn, *a, *b, *additional), list(xs)
    ),
    "map_impl": lambda fn, xs, operands=(): map_rows(lambda row: _called(fn, *row, *operands), list(xs)),
    "wrap_with_set_grad_enabled": lambda enabled, fn, *args: _called(fn, *args),
}


def inputs_of(program: Any, params: Mapping[str, Any], args: Any) -> list[Any]:
    """The inputs of a captured program's graph: its parameters, buffers and constants, and the arguments."""
    specs = program.graph_signature.input_specs
    given = iter(_pytree.tree_leaves(args))
    found = []
    for spec in specs:
        kind = spec.kind.name
        if kind in ("PARAMETER", "BUFFER"):
            name = spec.target
            found.append(params[name] if name in params else to_array(program.state_dict[name]))
        elif kind == "CONSTANT_TENSOR":
            found.append(to_array(program.constants[spec.target]))
        elif kind == "USER_INPUT":
            found.append(next(given))
        else:
            raise unsupported(f"an input of the kind {kind}")
    return found


# Held while a module has traced tensors in place of its parameters.
SWAPPING = forks.recursive_lock()
_TORCH = torch.__name__ + "."
install()


def converted(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function with its control flow rewritten; where that cannot be done itself, and its errors say why."""
    try:
        return convert(fn)
    except UserInputError as error:
        reason = error.got or error.problem

    @functools.wraps(fn)
    def as_it_is(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except CtrlgradError as error:
            error.notes.append(f"in {fn.__qualname__}, which autograph runs as it is: {reason}")
            raise

    return as_it_is


class FromTorch:
    """A function or module of PyTorch as a function of this library; made by `ctrlgrad.from_torch`.

    Attributes:
        params: the parameters of the module by their names in its `state_dict`, over the same memory; empty for a
            function.
        buffers: its buffers likewise.
        module: the module, or None.
    """

    def __init__(self, fn: Callable[..., Any], example_args: tuple[Any, ...], dynamic_shapes: Any) -> None:
        self.fn = fn
        self.module = fn if isinstance(fn, torch.nn.Module) else None
        self.name = str(getattr(fn, "__name__", type(fn).__name__))
        if self.module is None:
            functools.update_wrapper(self, fn)
        module = self.module
        self.params = {} if module is None else {name: to_array(x) for name, x in module.named_parameters()}
        self.buffers = {} if module is None else {name: to_array(x) for name, x in module.named_buffers()}
        # The program that `torch.export` has captured, and the sizes of its arguments, None for a dynamic one.
        self.program: Any = None
        self._sizes: tuple[Any, ...] = ()
        if example_args or dynamic_shapes is not None:
            self._capture(example_args, dynamic_shapes)
        self._function: Function = function(self._on_signature, name=self.name)

    def __repr__(self) -> str:
        return f"<{self.name} from PyTorch>"

    def check_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse packed sequences: their batch sizes are numbers of Python's in PyTorch, and traced tensors here."""
        if any(isinstance(x, PackedSequence) for x in (*args, *kwargs.values())):
            raise UserInputError(
                f"from_torch: {self.name} is called on a packed sequence",
                expected="tensors: a padded batch, and its lengths",
                got="PackedSequence",
                hint="call pack_padded_sequence(x, lengths) in the module's forward",
            )

    @property
    def traces(self) -> int:
        """Number of times that the function has been traced."""
        return self._function.traces

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.check_arguments(args, kwargs)
        args, kwargs = tree.map(_array, (args, kwargs))
        key = kwargs.pop("dropout_key", None)
        if self.module is not None and (not args or not isinstance(args[0], Mapping)):
            raise UserInputError(
                f"from_torch: {self.name} is called without its parameters",
                expected="a dict of arrays by name, and the arguments of forward",
                got=", ".join(type(x).__name__ for x in args) or "no arguments",
                hint="f = ctrlgrad.from_torch(module); f(f.params, x)",
            )
        if self.module is not None:
            args = ({**self.buffers, **args[0]}, *args[1:])
        if trace.current() is not None:
            return self._run(key, args, kwargs)
        modes = () if self.module is None else tuple(m.training for m in self.module.modules())
        sizes = tuple(map(_size, tree.leaves((args, kwargs))))
        if self._fits((args[1:] if self.module is not None else args, kwargs)):
            sizes = (*sizes[: len(sizes) - len(self._sizes)], *self._sizes)
        return self._function(Static((modes, sizes, torch.is_grad_enabled()), tuple), key, *args, **kwargs)

    def _on_signature(self, _: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
        return self._run(key, args, kwargs)

    def _run(self, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        params, args = (args[0], args[1:]) if self.module is not None else ({}, args)
        result, buffers = self.results(params, args, kwargs, key)
        return (result, buffers) if buffers else result

    def results(
        self, params: Mapping[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any], key: Any = None
    ) -> tuple[Any, Any]:
        """The result and the buffers that have changed, recorded in the trace; dropout draws by the key."""
        with holding(DRAWS, None if key is None else Draws(key)):
            if self._fits((args, kwargs)):
                return self._read(params, args, kwargs)
            running = Trace()
            with running.entered():
                given, named = tree.map(lambda x: running.wrap(x) if _is_tensor(x) else x, (args, kwargs))
                if self.module is None:
                    return tree.map(_result, converted(self.fn)(*given, **named)), {}
                wrapped = {name: running.wrap(x) for name, x in params.items()}
                with _swapped(self.module, wrapped) as changed:
                    found = self.module(*given, **named)
                    return tree.map(_result, found), tree.map(_result, changed())

    # Capture of `torch.export`.

    def _capture(self, args: tuple[Any, ...], dynamic_shapes: Any) -> None:
        """Capture the function for these arguments; one whose control flow depends on data is traced at each call."""
        module = self.module if self.module is not None else _Wrapped(self.fn)
        given = _pytree.tree_map(lambda x: torch.from_numpy(x) if isinstance(x, np.ndarray) else x, args)
        try:
            # PyTorch warns of what its own modules do.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                program = torch.export.export(module, given, dynamic_shapes=dynamic_shapes, strict=False)
                self.program = program.run_decompositions(decompositions())
        except Exception as error:
            if dynamic_shapes is None:
                return
            raise TracingError(
                f"from_torch: torch.export cannot capture {self.name} with dynamic sizes",
                expected="control flow that does not depend on data",
                got=str(error).strip().splitlines()[0],
                hint="leave dynamic_shapes out: Python's loops and branches become loops and branches of the graph",
            ) from error
        self.graph_module = self.program.graph_module
        holders = [n for n in self.graph_module.graph.nodes if n.op == "placeholder"]
        specs = self.program.graph_signature.input_specs
        own = [n.meta.get("val") for n, s in zip(holders, specs, strict=True) if s.kind.name == "USER_INPUT"]
        self._sizes = tuple(_stated(x) for x in own)

    def _fits(self, given: Any) -> bool:
        """Return true if arguments have the sizes of the captured program."""
        if self.program is None:
            return False
        leaves = tree.leaves(given)
        return len(leaves) == len(self._sizes) and all(map(_agrees, map(_size, leaves), self._sizes))

    def _read(self, params: Mapping[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        found = read(self.graph_module, *inputs_of(self.program, params, (args, kwargs)))
        results, buffers = [], {}
        for spec, x in zip(self.program.graph_signature.output_specs, found, strict=True):
            if spec.kind.name == "BUFFER_MUTATION":
                buffers[spec.target] = x
            elif spec.kind.name == "USER_OUTPUT":
                results.append(x)
            else:
                raise TracingError(
                    f"from_torch: {self.name} changes its argument in place", source=here(), hint="x = x.clone() first"
                )
        result = _pytree.tree_unflatten(results, self.program.call_spec.out_spec)
        return result, buffers


class _Wrapped(torch.nn.Module):
    """A function as a module, which `torch.export` asks for."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        # `torch.export` reads the names of its parameters.
        self.forward = fn


def _array(x: Any) -> Any:
    return to_array(x) if isinstance(x, torch.Tensor) and not isinstance(x, TracedTensor) else x


def _is_tensor(x: Any) -> bool:
    """Return true if PyTorch takes an argument as a tensor: an array, and no Python number."""
    return isinstance(x, np.ndarray | np.generic) or (isinstance(x, Tensor) and not x.weak)


def _size(x: Any) -> Any:
    if not isinstance(x, np.ndarray | np.generic | Tensor):
        return None
    t = type_of(x)
    return t.shape if isinstance(t, TensorType) else None


def _stated(x: Any) -> Any:
    """The sizes of an argument in a captured program; None in the place of a dynamic one."""
    return tuple(n if isinstance(n, int) else None for n in x.shape) if isinstance(x, torch.Tensor) else None


def _agrees(own: Any, stated: Any) -> bool:
    if own is None or stated is None:
        return own is stated
    return len(own) == len(stated) and all(m is None or m == n for n, m in zip(own, stated, strict=True))


def _result(x: Any) -> Any:
    return value_of(x) if isinstance(x, torch.Tensor) else x


@contextlib.contextmanager
def _swapped(module: torch.nn.Module, values: Mapping[str, Any]) -> Iterator[Callable[[], dict[str, Any]]]:
    """The module with these values for its parameters and buffers; what is given says which buffers have changed.

    Within it `forward` of the user's classes has its control flow rewritten.
    """
    owners: dict[int, str] = {}
    for name, x in [*module.named_parameters(), *module.named_buffers()]:
        owners[id(x)] = name
    unknown = sorted(values.keys() - set(owners.values()))
    missing = sorted(set(owners.values()) - values.keys())
    if unknown or missing:
        raise UserInputError(
            f"from_torch: the parameters are not those of {type(module).__name__}",
            expected="an array for each name of .params",
            got=", ".join([*(f"no {n}" for n in missing[:4]), *(f"{n}, which it has not" for n in unknown[:4])]),
            hint="pass {**f.params, name: value}",
        )
    with SWAPPING:
        modules = list(module.modules())
        before = [(m, dict(m.__dict__), dict(m._parameters), dict(m._buffers)) for m in modules]
        try:
            for m in modules:
                for held in (m._parameters, m._buffers):
                    held.update({key: values[owners[id(x)]] for key, x in held.items() if x is not None})
                if isinstance(m, torch.nn.RNNBase):
                    m._flat_weights = [getattr(m, n, None) for n in m._flat_weights_names]
                forward = type(m).forward
                if isinstance(forward, FunctionType) and not type(m).__module__.startswith(_TORCH):
                    m.__dict__["forward"] = MethodType(converted(forward), m)

            def changed() -> dict[str, Any]:
                found = {}
                for (m, attributes, _, buffers), (path, _) in zip(before, module.named_modules(), strict=True):
                    for key, x in m._buffers.items():
                        name = f"{path}.{key}" if path else key
                        first = buffers.get(key)
                        held = values.get(owners.get(id(first), ""))
                        if x is not held or (isinstance(x, TracedTensor) and x.storage.version):
                            found[name] = x
                    _check_attributes(m, attributes)
                return found

            yield changed
        finally:
            for m, attributes, parameters, buffers in before:
                m.__dict__.clear()
                m.__dict__.update(attributes)
                m._parameters.clear()
                m._parameters.update(parameters)
                m._buffers.clear()
                m._buffers.update(buffers)


def _check_attributes(module: torch.nn.Module, before: Mapping[str, Any]) -> None:
    """Refuse tensors that were left in attributes of a module: they have no numbers there."""
    for key, x in module.__dict__.items():
        if key != "_flat_weights" and x is not before.get(key) and isinstance(x, TracedTensor):
            raise TracingError(
                f"from_torch: {type(module).__name__} leaves a tensor in its attribute {key!r}",
                expected="results that are returned, and buffers",
                got=repr(x),
                hint=f"self.register_buffer({key!r}, ...) in __init__, or return it",
            )
