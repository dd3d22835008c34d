"""A function of this library that takes tensors of PyTorch."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ctrlgrad import tree
from ctrlgrad.errors import TracingError
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.watched import Watched
from ctrlgrad.function import MOST_KNOWN, SIGNATURES, Function
from ctrlgrad.interop.torch.autograd import TorchProgram, apply
from ctrlgrad.interop.torch.module import SWAPPING, FromTorch
from ctrlgrad.interop.torch.operators import NeedsKey
from ctrlgrad.interop.torch.tensors import readable, to_tensor, type_of
from ctrlgrad.ir import Type
from ctrlgrad.ir.caching import Recent
from ctrlgrad.ir.interning import LARGEST
from ctrlgrad.options import current_options
from ctrlgrad.signature import Concrete, Signature, Static, TensorSpec, static

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
