"""A module of PyTorch that runs as a program of this library: its parameters, its `state_dict`, machine code inside."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ctrlgrad import tree
from ctrlgrad.interop.torch.function import TorchFunction
from ctrlgrad.interop.torch.module import SWAPPING, FromTorch
from ctrlgrad.interop.torch.operators import NeedsKey
from ctrlgrad.signature import Static


class DropIn(torch.nn.Module):
    """The module that a function was read from, run by this library; made by `ctrlgrad.to_torch(from_torch(module))`.

    It has the module's own parameters, buffers and submodules, by the same names: optimisers and `state_dict` see no
    difference. Buffers that the program changes are written back.
    """

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
            # Whether a module draws is known only when it has been traced.
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


__all__ = ["DropIn"]
