"""A module of PyTorch that runs as a program of this library: its parameters, its `state_dict`, machine code inside."""

from __future__ import annotations

from typing import Any

import torch

from ctrlgrad.interop.torch.function import TorchFunction
from ctrlgrad.interop.torch.module import FromTorch


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
        self.__dict__.update(_of=program, _changed=None)

        def run(modes: tuple[bool, ...], params: Any, args: Any, kwargs: Any) -> Any:
            return program.results(params, args, kwargs)

        run.__name__ = program.name
        self.__dict__["_run"] = TorchFunction(run, budget)

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

    @torch.compiler.disable  # type: ignore[misc, untyped-decorator, unused-ignore]
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        module = self._of.module
        buffers = dict(module.named_buffers())
        # What the last call has changed is copied: PyTorch would miss its numbers when it goes backwards.
        kept = {name: x.clone() if self._changed is None or name in self._changed else x for name, x in buffers.items()}
        named = {**dict(module.named_parameters()), **kept}
        modes = tuple(m.training for m in module.modules())
        result, changed = self._run(modes, named, args, kwargs)
        with torch.no_grad():
            for name, x in changed.items():
                buffers[name].copy_(x)
        self.__dict__["_changed"] = set(changed)
        return result


__all__ = ["DropIn"]
