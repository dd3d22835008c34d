"""A function of this library that takes tensors of PyTorch."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ctrlgrad import tree
from ctrlgrad.errors import TracingError
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.watched import Watched
from ctrlgrad.function import MOST_KNOWN, SIGNATURES, Function
from ctrlgrad.interop.torch.autograd import apply
from ctrlgrad.interop.torch.program import TorchProgram
from ctrlgrad.interop.torch.tensors import readable, to_tensor, type_of
from ctrlgrad.ir import Type
from ctrlgrad.ir.caching import Recent
from ctrlgrad.ir.interning import LARGEST
from ctrlgrad.options import current_options
from ctrlgrad.signature import Concrete, Signature, Static, TensorSpec, static
from ctrlgrad.source import here

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
        # By the types and sizes of a call whose arguments are all tensors.
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
        options = current_options()
        key: list[Any] = [treedef, options.engine, options.of_traces]
        tensors: list[torch.Tensor] = []
        for x in leaves:
            if isinstance(x, torch.Tensor):
                key += (x.dtype, x.shape, x.device, x.layout)
                tensors.append(x)
            elif type(x) is Static:
                key += (x.kind, x.value)
            else:
                # It may need a copy, or a trace of its own.
                key.clear()
                break
        known = tuple(key)
        bound = self._known.get(known)
        if bound is None or not bound[0].watched.is_current():
            tensors = []
            bound = self._bound(leaves, treedef, tensors)
            if known:
                if len(self._known) >= MOST_KNOWN:
                    self._known.clear()
                self._known[known] = bound
        concrete, program = bound
        return concrete.unflatten(apply(program, tensors, budget=self.budget))

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
                source=here(),
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


__all__: Sequence[str] = ["TorchFunction"]
