"""A program as one operation of PyTorch: a `torch.autograd.Function` whose derivatives are programs of the same kind.

Where a backward pass is to come, the forward pass keeps what it needs (`Residuals`). They hang on a tensor that is
saved for backward, so PyTorch says when they go: after `backward()`, or at once under `torch.utils.checkpoint`. A
backward pass that is itself to be differentiated, or that finds nothing kept, is the pullback as a program of the
arguments, which computes the forward pass again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ctrlgrad import memory
from ctrlgrad.interop.torch.program import Residuals, TorchProgram
from ctrlgrad.interop.torch.tensors import to_array, to_tensor


@dataclass(eq=False)
class Call:
    """One call of a program."""

    program: TorchProgram
    # With respect to which arguments a backward pass may follow.
    wrt: tuple[int, ...]
    # Bytes that saved values may take. A budget rules one run: the backward pass then computes the forward pass again.
    budget: int | None = None
    # Values kept for the backward pass.
    kept: Residuals | None = None

    def run(self, arrays: Sequence[Any]) -> Sequence[Any]:
        if self.budget is not None:
            with memory.budget(device=self.budget):
                return self.program.run(*arrays)  # type: ignore[no-any-return]
        if self.wrt:
            results, self.kept = self.program.run_and_keep(self.wrt, *arrays)
            return results
        return self.program.run(*arrays)  # type: ignore[no-any-return]


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
    elif wrt or torch.autograd.forward_ad._current_level >= 0:
        operation = _Plain
    else:
        return _results(call, tensors)
    found: Sequence[Any] = operation.apply(call, *tensors)
    return found


def _results(call: Call, tensors: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([to_tensor(x) for x in call.run([to_array(x) for x in tensors])])


class _Run(torch.autograd.Function):
    """`_Run.apply(call, *tensors)` is a tuple of the program's results."""

    @staticmethod
    def forward(call: Call, *tensors: Any) -> Any:
        return _results(call, tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        call, *tensors = inputs
        ctx.program, ctx.budget = call.program, call.budget
        ctx.set_materialize_grads(False)
        if len(call.program.floats) < len(output):
            ctx.mark_non_differentiable(*(y for i, y in enumerate(output) if i not in call.program.floats))
        tickets = [] if call.kept is None else [_Ticket.of(call.kept)]
        call.kept = None
        ctx.save_for_backward(*tensors, *tickets)
        ctx.save_for_forward(*tensors)
        ctx.results = [(y.shape, y.dtype) for y in output]

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        program: TorchProgram = ctx.program
        count = len(program.types)
        # Asked for once: `torch.utils.checkpoint` computes them when they are asked for.
        saved = ctx.saved_tensors
        tensors = saved[:count]
        kept = getattr(saved[count], "residuals", None) if len(saved) > count else None
        wrt = kept.wrt if kept is not None else tuple(i for i in range(count) if ctx.needs_input_grad[i + 1])
        seeds = [_seed(cotangents[i], *ctx.results[i]) for i in program.floats]
        if kept is None or torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
            found = apply(program.pullback(wrt), [*tensors, *seeds], ctx.budget)
        else:
            arrays = program.run_backward(kept, lambda i: to_array(tensors[i]), [to_array(x) for x in seeds])
            found = [to_tensor(x) for x in arrays]
        gradients: list[Any] = [None] * (count + 1)
        for i, x in zip(wrt, found, strict=True):
            gradients[i + 1] = _conjugate(x)
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
        output = _results(inputs[0], inputs[1:])
        _Run.setup_context(ctx, inputs, output)
        return output

    backward, jvp = _Run.backward, _Run.jvp


def _seed(cotangent: Any, shape: Any, dtype: Any) -> Any:
    return torch.zeros(shape, dtype=dtype) if cotangent is None else _conjugate(cotangent)


def _conjugate(x: Any) -> Any:
    """PyTorch's gradient of complex numbers is the conjugate of the cotangent."""
    return x.conj() if x.is_complex() else x


__all__ = ["apply"]
