"""A module of PyTorch that runs as a program of this library: its parameters, its `state_dict`, machine code inside."""

from __future__ import annotations

from typing import Any

import torch

from ctrlgrad.interop.torch.function import TorchFunction
from ctrlgrad.interop.torch.module import FromTorch
from ctrlgrad.options import options


class DropIn(torch.nn.Module):
    """The module that a function was read from, run by this library; made by `ctrlgrad.to_torch(from_torch(module))`.

    It has the module's own parameters, buffers and submodules, by the same names: optimisers and `state_dict` see no
    difference. Buffers that the program changes are written back.
    """

    def __init__(self, program: FromTorch, settings: dict[str, Any]) -> None:
        super().__init__()
        assert program.module is not None
        module = program.module
        self._parameters, self._buffers, self._modules = module._parameters, module._buffers, module._modules
        self._non_persistent_buffers_set = module._non_persistent_buffers_set
        self.training = module.training
        self.__dict__["_of"], self.__dict__["_settings"] = program, settings

        def run(modes: tuple[bool, ...], params: Any, args: Any, kwargs: Any) -> Any:
            return program.results(params, args, kwargs)

        run.__name__ = program.name
        self.__dict__["_run"] = TorchFunction(run)

    @property
    def traces(self) -> int:
        """How often the module has been traced."""
        found: int = self._run.traces
        return found

    def train(self, mode: bool = True) -> DropIn:
        """Set the module itself to training too."""
        self._of.module.train(mode)
        return super().train(mode)

    @torch.compiler.disable  # type: ignore[misc, unused-ignore]
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        module = self._of.module
        named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        modes = tuple(m.training for m in module.modules())
        with options(**self._settings):
            result, changed = self._run(modes, named, args, kwargs)
        with torch.no_grad():
            for name, x in changed.items():
                named[name].copy_(x)
        return result


__all__ = ["DropIn"]
