"""A function of this library that takes tensors of PyTorch."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ctrlgrad import memory, tree
from ctrlgrad.batching import batch_whole
from ctrlgrad.engines import current_without
from ctrlgrad.engines.block_kernels import lists_of
from ctrlgrad.errors import TracingError
from ctrlgrad.execution import after_failure, program_of, run_on
from ctrlgrad.frontend.apply import EagerStack
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.watched import Watched
from ctrlgrad.function import MOST_KNOWN, SIGNATURES, Function, hand_out
from ctrlgrad.gradients.reverse import reverse
from ctrlgrad.interop.program import Program
from ctrlgrad.interop.torch.module import SWAPPING, FromTorch
from ctrlgrad.interop.torch.operators import NeedsKey
from ctrlgrad.interop.torch.tensors import readable, to_array, to_tensor, type_of
from ctrlgrad.ir import Graph, StackType, Type
from ctrlgrad.ir.caching import Recent
from ctrlgrad.ir.interning import LARGEST
from ctrlgrad.memory.session import current as session
from ctrlgrad.options import current_options
from ctrlgrad.signature import Concrete, Signature, Static, TensorSpec, simplified, static

# A program as one operation of PyTorch: a `torch.autograd.Function` whose derivatives are programs of the same kind.
#
# Where a backward pass is to come, the forward pass keeps what it needs (`Residuals`). They hang on a tensor that is
# saved for backward, so PyTorch says when they go: after `backward()`, or at once under `torch.utils.checkpoint`. A
# backward pass that is itself to be differentiated, or that finds nothing kept, is the pullback as a program of the
# arguments, which computes the forward pass again.


class Call:
    """One call of a program.

    `wrt` are the arguments with respect to which a backward pass may follow. A budget is the bytes that saved values
    may take; it rules one run, so the backward pass then computes the forward pass again.
    """

    __slots__ = ("budget", "kept", "program", "wrt")

    def __init__(self, program: TorchProgram, wrt: tuple[int, ...], budget: int | None) -> None:
        self.program, self.wrt, self.budget = program, wrt, budget
        # Values kept for the backward pass.
        self.kept: Residuals | None = None

    def results(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """Run on the tensors' numbers."""
        arrays = [to_array(x) for x in tensors]
        if self.budget is not None:
            with memory.budget(device=self.budget):
                found = self.program.run(*arrays)
        elif self.wrt:
            found, self.kept = self.program.run_and_keep(self.wrt, *arrays)
        else:
            found = self.program.run(*arrays)
        return tuple([to_tensor(x) for x in found])


_EMPTY = torch.empty(0)


class _Ticket(torch.Tensor):
    """An empty tensor that residuals hang on."""

    residuals: Residuals

    @classmethod
    def of(cls, residuals: Residuals) -> _Ticket:
        ticket: _Ticket = torch.Tensor._make_subclass(cls, _EMPTY)
        ticket.residuals = residuals
        return ticket

    def detach(self) -> _Ticket:
        """Itself: `torch.utils.checkpoint` hands on a detached tensor in place of each that was saved."""
        return self


def apply(program: TorchProgram, tensors: Sequence[Any], budget: int | None = None) -> Sequence[Any]:
    """The results of a program as tensors that PyTorch differentiates."""
    if not program.results:
        return []
    wrt: tuple[int, ...] = ()
    if torch.is_grad_enabled() and program.floats:
        wrt = tuple([i for i, x in enumerate(tensors) if x.requires_grad])
    call = Call(program, wrt, budget)
    if torch._C._are_functorch_transforms_active():
        operation: Any = _Run
        return operation.apply(call, *tensors)  # type: ignore[no-any-return]
    if wrt or torch.autograd.forward_ad._current_level >= 0:
        return _apply_plainly(call, *tensors)  # type: ignore[no-any-return]
    return call.results(tensors)


class _Run(torch.autograd.Function):
    """`_Run.apply(call, *tensors)` is a tuple of the program's results."""

    @staticmethod
    def forward(call: Call, *tensors: Any) -> Any:
        return call.results(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        call, *tensors = inputs
        program = ctx.program = call.program
        ctx.budget, ctx.results = call.budget, [(y.shape, y.dtype) for y in output]
        ctx.set_materialize_grads(False)
        if len(program.floats) < len(output):
            ctx.mark_non_differentiable(*(y for i, y in enumerate(output) if i not in program.floats))
        if call.kept is None:
            ctx.save_for_backward(*tensors)
        else:
            ctx.save_for_backward(*tensors, _Ticket.of(call.kept))
            call.kept = None
        if torch.autograd.forward_ad._current_level >= 0:
            ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        program: TorchProgram = ctx.program
        count = len(program.types)
        # Asked for once: `torch.utils.checkpoint` computes them when they are asked for.
        saved = ctx.saved_tensors
        kept = getattr(saved[count], "residuals", None) if len(saved) > count else None
        seeds = [_seed(cotangents[i], *ctx.results[i]) for i in program.floats]
        if kept is None or torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
            wrt = kept.wrt if kept is not None else tuple(i for i in range(count) if ctx.needs_input_grad[i + 1])
            found = apply(program.pullback(wrt), [*saved[:count], *seeds], ctx.budget)
        else:
            wrt = kept.wrt
            found = [to_tensor(x) for x in program.run_backward(kept, [to_array(x) for x in seeds])]
        gradients: list[Any] = [None] * (count + 1)
        for i, x in zip(wrt, found, strict=True):
            gradients[i + 1] = x.conj() if x.is_complex() else x
        return tuple(gradients)

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        program: TorchProgram = ctx.program
        wrt = tuple(i for i, t in enumerate(tangents) if t is not None)
        given = [*ctx.saved_tensors[: len(tangents)], *(tangents[i] for i in wrt)]
        found = apply(program.tangent(wrt), given, ctx.budget)
        moved = dict(zip(program.floats, found, strict=True))
        return tuple(moved.get(i) for i in range(len(ctx.results)))

    @staticmethod
    def vmap(info: Any, in_dims: Any, call: Call, *tensors: Any) -> Any:
        axes = tuple(axis if axis is None else axis % x.ndim for axis, x in zip(in_dims[1:], tensors, strict=True))
        found = tuple(apply(call.program.batched(axes, info.batch_size), tensors, call.budget))
        return found, (0,) * len(found)


class _Plain(torch.autograd.Function):
    """`_Run` outside of `torch.func`: PyTorch binds the arguments of `setup_context` by their names at each call."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        output = inputs[0].results(inputs[1:])
        _Run.setup_context(ctx, inputs, output)
        return output

    backward, jvp = _Run.backward, _Run.jvp


# `Function.apply` without its search of the arguments for tensors of transforms that have ended.
_apply_plainly: Any = super(torch.autograd.Function, _Plain).apply


def _seed(cotangent: Any, shape: Any, dtype: Any) -> Any:
    """Cotangent of a result; PyTorch's gradient of complex numbers is its conjugate."""
    if cotangent is None:
        return torch.zeros(shape, dtype=dtype)
    return cotangent.conj() if cotangent.is_complex() else cotangent


# A program whose forward pass keeps what the backward pass needs, where that is to come at once.


@dataclass(eq=False, slots=True)
class Residuals:
    """Residuals of a forward pass for the backward pass with respect to the arguments at `wrt`, in its order."""

    wrt: tuple[int, ...]
    values: list[Any]


class _Code:
    """A graph with its machine code at hand. Stacks go in and come out in blocks."""

    def __init__(self, graph: Graph, engine: str) -> None:
        self.graph, self.engine = simplified(graph), engine
        types = [v.type.element if isinstance(v.type, StackType) else v.type for v in graph.inputs]
        self.is_static = all(t.is_static for t in types)
        self.known: Callable[[Sequence[Any]], list[Any]] | None = None

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """The results, which share no memory with the arguments."""
        checks, failure = current_options().check_nans, None
        if not checks and self.engine in ("auto", "native") and session() is None and not current_without():
            known = self.known or program_of(self.graph, arrays)
            if known is not None:
                try:
                    found = known(arrays)
                    self.known = known if self.is_static else None
                    return found
                except Exception as error:
                    self.known, failure = None, error
        given = lists_of(arrays)
        if failure is not None:
            found = after_failure(self.graph, given, failure)
        else:
            found = run_on(self.engine, self.graph, given, checks)
        return [x.items if isinstance(x, EagerStack) else x for x in hand_out(self.graph, found, given)]


@dataclass(frozen=True, eq=False)
class _Halves:
    """Both passes. Residuals are what `forward` gives after the results, and the arguments at `read`, in `order`."""

    forward: _Code
    backward: _Code
    read: tuple[int, ...]
    order: tuple[int, ...]


class TorchProgram(Program):
    """A program that `torch.autograd` runs forwards and, with what that run has kept, backwards."""

    def run(self, *arrays: Any) -> Any:
        """The results for NumPy's arrays."""
        return self._once("code", lambda: _Code(self.graph, self.engine))(arrays)

    def run_and_keep(self, wrt: tuple[int, ...], *arrays: Any) -> tuple[list[Any], Residuals]:
        """The results, and what `run_backward` needs to pull cotangents of them back to the arguments at `wrt`."""
        halves, count = self._halves(wrt), len(self.results)
        found = halves.forward(arrays)
        values = [*found[count:], *[arrays[i] for i in halves.read]]
        return found[:count], Residuals(wrt, [values[i] for i in halves.order])

    def run_backward(self, residuals: Residuals, seeds: Sequence[Any]) -> list[Any]:
        """The cotangents of the arguments at `residuals.wrt`, for one of each result that is a float."""
        return self._halves(residuals.wrt).backward([*residuals.values, *seeds])

    def _halves(self, wrt: tuple[int, ...]) -> _Halves:
        def make() -> _Halves:
            found, count = reverse(self.graph, wrt, self.floats, batch_whole), len(self.results)
            forward, residuals = found.forward, found.forward.outputs[count:]
            places = {v: i for i, v in enumerate(forward.inputs)}
            kept = [v for v in residuals if v not in places]
            read = [v for v in residuals if v in places]
            outputs = (*forward.outputs[:count], *kept)
            return _Halves(
                _Code(Graph(forward.inputs, forward.nodes, outputs, forward.name), self.engine),
                _Code(found.backward, self.engine),
                tuple(places[v] for v in read),
                tuple([*kept, *read].index(v) for v in residuals),
            )

        halves: _Halves = self._once(("halves", wrt), make)
        return halves


Bound = tuple[Concrete, TorchProgram]


class _Signatures(Function):
    """A function traced for arguments that are not there to be run on; where `exact` is set, for their sizes alone."""

    exact = False

    def _known_for(self, known: Signature, types: list[Type], leaves: list[Any], treedef: tree.TreeDef) -> Concrete:
        known.exact_only |= self.exact
        return super()._known_for(known, types, leaves, treedef)

    def concrete(self, *args: Any, **kwargs: Any) -> Concrete:
        """Trace for the signature of these arguments, arrays among them as `TensorSpec`s."""
        return self._specialize(args, kwargs)[0]

    def _watch(self, given: list[Any], captured: list[np.ndarray]) -> Watched:
        """Watch large captured arrays too: they are constants of the graph that is differentiated, and no inputs."""
        found = super()._watch(given, captured)
        found.arrays += [(x, x.tobytes()) for x in captured if x.nbytes > LARGEST]
        return found


class TorchFunction:
    """A function of this library for PyTorch; made by `ctrlgrad.to_torch`."""

    def __init__(self, fn: Callable[..., Any], budget: int | None = None, exact: bool = False) -> None:
        functools.update_wrapper(self, fn)
        self.fn, self.budget = fn, budget
        self.name = str(getattr(fn, "__name__", type(fn).__name__))
        self._function = _Signatures(fn, "auto", None, self.name)
        self._function.exact = exact
        self._programs: Recent[Any, Bound] = Recent(SIGNATURES)
        # Keyed by the types and sizes of a call whose arguments are all tensors.
        self._known: dict[Any, Bound] = {}

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __deepcopy__(self, memo: dict[int, Any]) -> TorchFunction:
        """A function of its own: a method of a module is one of the module's copy."""
        return TorchFunction(copy.deepcopy(self.fn, memo), self.budget)

    def __repr__(self) -> str:
        return f"<{self.name} for PyTorch>"

    @property
    def traces(self) -> int:
        """Number of times that the function has been traced."""
        return self._function.traces

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, treedef = tree.flatten((args, kwargs))
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        # Of another leaf a copy may be needed, or a trace of its own.
        return self.on(treedef if len(tensors) == len(leaves) else None, tensors, lambda: (leaves, treedef))

    def on(self, key: Any, tensors: list[torch.Tensor], given: Callable[[], tuple[list[Any], tree.TreeDef]]) -> Any:
        """The results of a call with these tensors, in order; the key stands for all other arguments, if they have one.

        `given` flattens all arguments, for the first call with such a key.
        """
        options = current_options()
        known = None
        if key is not None:
            kinds = [(x.dtype, x.shape, x.device, x.layout) for x in tensors]
            known = (key, options.engine, options.of_traces, *kinds)
        bound = self._known.get(known)
        if bound is None or not bound[0].watched.is_current():
            tensors = []
            bound = self._bound(*given(), tensors)
            if known is not None:
                if len(self._known) >= MOST_KNOWN:
                    self._known.clear()
                self._known[known] = bound
        concrete, program = bound
        return concrete.unflatten(apply(program, tensors, self.budget))

    def _bound(self, leaves: list[Any], treedef: tree.TreeDef, tensors: list[torch.Tensor]) -> Bound:
        """The trace of a call, and its program; its arrays are appended to `tensors`."""
        marked, named = tree.unflatten(treedef, [self._kind(x, tensors) for x in leaves])
        concrete = self._function.concrete(*marked, **named)
        engine = current_options().engine
        # The signature is held beside its program, so that no other has its id.
        return self._programs.get(
            (id(concrete), engine), lambda: (concrete, TorchProgram.of(self.name, concrete.graph, engine))
        )

    def _kind(self, x: Any, tensors: list[torch.Tensor]) -> Any:
        """Tracer's form of an argument; arrays are appended to `tensors`."""
        if isinstance(x, Tensor):
            raise TracingError(
                f"to_torch: {self.name} is called on a traced tensor of this library",
                expected="tensors of PyTorch, NumPy's arrays, numbers",
                got=repr(x),
                hint="call the function itself there",
            )
        if isinstance(x, np.ndarray | np.generic):
            x = to_tensor(np.array(x))
        if isinstance(x, torch.Tensor):
            tensors.append(readable(self.name, x))
            found = type_of(tensors[-1])
            return TensorSpec(found.shape, found.dtype)
        if isinstance(x, float | complex):
            tensors.append(to_tensor(np.asarray(x)))
            return x
        return static(x)


# A module of PyTorch that runs as a program of this library: its parameters, its `state_dict`, machine code inside.


class DropIn(torch.nn.Module):
    """The module that a function was read from, run by this library; made by `ctrlgrad.to_torch(from_torch(module))`.

    It has the module's own parameters, buffers and submodules, by the same names: optimisers and `state_dict` see no
    difference. Buffers that the program changes are written back.
    """

    _of: Any
    # Buffers that the last call has changed, and the modes of its modules in which it draws dropout.
    _changed: set[str] | None
    _draws: set[tuple[bool, ...]]
    _run: TorchFunction

    def __init__(self, program: FromTorch, budget: int | None = None) -> None:
        super().__init__()
        assert program.module is not None
        module = program.module
        self._parameters, self._buffers, self._modules = module._parameters, module._buffers, module._modules
        self._non_persistent_buffers_set = module._non_persistent_buffers_set
        self.training = module.training
        self.__dict__.update(_of=program, _changed=None, _draws=set())

        def run(state: Any, values: Any, key: Any, args: Any, kwargs: Any) -> Any:
            key = None if key is None else key.astype(np.uint32)
            return program.results(dict(zip(state[1], values, strict=True)), args, kwargs, key)

        run.__name__ = program.name
        # A module's Python code may ask for sizes; of a captured program some may be left open.
        self.__dict__["_run"] = TorchFunction(run, budget, exact=program.program is None)

    @property
    def traces(self) -> int:
        """Number of times that the module has been traced."""
        found: int = self._run.traces
        return found

    def train(self, mode: bool = True) -> DropIn:
        """Set the module itself to training too."""
        self._of.module.train(mode)
        super().train(mode)
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return (self._uncompiled if torch.compiler.is_compiling() else self._forward)(*args, **kwargs)

    @torch.compiler.disable  # type: ignore[misc, untyped-decorator, unused-ignore]
    def _uncompiled(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward(*args, **kwargs)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        self._of.check_arguments(args, kwargs)
        named: dict[str, Any] = {}
        buffers: dict[str, Any] = {}
        modes: list[bool] = []
        # Another thread may be tracing the module, which has traced tensors in place of its parameters then.
        with SWAPPING:
            _walk(self._of.module, "", named, buffers, modes, set())
        # Buffers that the last call has changed are copied: PyTorch would miss its numbers when it goes backwards.
        for name, x in buffers.items():
            named[name] = x.clone() if self._changed is None or name in self._changed else x
        try:
            result, changed = self._called(tuple(modes), named, args, kwargs)
        except NeedsKey:
            # A module that draws is known only after it has been traced.
            self._draws.add(tuple(modes))
            result, changed = self._called(tuple(modes), named, args, kwargs)
        if changed:
            with torch.no_grad():
                for name, x in changed.items():
                    buffers[name].copy_(x)
        if changed or self._changed is None:
            self.__dict__["_changed"] = set(changed)
        return result

    def _called(self, modes: Any, named: dict[str, Any], args: Any, kwargs: Any) -> Any:
        """Results, and buffers that have changed. Keys of dropout come from PyTorch's generator, by `manual_seed`."""
        key = torch.empty(2, dtype=torch.int64).random_(1 << 32) if modes in self._draws else None
        state = Static((modes, tuple(named)), tuple)
        tensors = [*named.values(), *(() if key is None else (key,)), *args]
        known = None if kwargs or not all(isinstance(x, torch.Tensor) for x in args) else (state.value, len(args))
        given = lambda: tree.flatten(((state, tuple(named.values()), key, args, kwargs), {}))
        return self._run.on(known, tensors, given)


def _walk(module: Any, path: str, params: Any, buffers: Any, modes: list[bool], seen: set[int]) -> None:
    """The parameters and buffers of a module by their names, each once, and which of its modules are training."""
    if id(module) in seen:
        return
    seen.add(id(module))
    modes.append(module.training)
    for held, found in ((module._parameters, params), (module._buffers, buffers)):
        for name, x in held.items():
            if x is not None and id(x) not in seen:
                seen.add(id(x))
                found[path + name] = x
    for name, inner in module._modules.items():
        if inner is not None:
            _walk(inner, f"{path}{name}.", params, buffers, modes, seen)
