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
    """One call of a program. Where it is the pullback of `of`, `residuals` may have been kept for it."""

    program: TorchProgram
    # With respect to which arguments a backward pass may follow.
    wrt: tuple[int, ...]
    of: TorchProgram | None = None
    residuals: Residuals | None = None
    # What was kept for that backward pass.
    kept: Residuals | None = None
    # Bytes that saved values may take. A budget rules one run: the backward pass then computes the forward pass again.
    budget: int | None = None

    def run(self, arrays: Sequence[Any]) -> Sequence[Any]:
        if self.budget is not None:
            with memory.budget(device=self.budget):
                return self.program.run(*arrays)
        if self.wrt:
            results, self.kept = self.program.run_and_keep(self.wrt, *arrays)
            return results
        if self.of is not None and self.residuals is not None:
            return self.of.run_backward(self.residuals, arrays[len(self.of.types) :])
        return self.program.run(*arrays)


class _Ticket(torch.Tensor):
    """An empty tensor that residuals hang on."""

    residuals: Residuals

    @classmethod
    def of(cls, residuals: Residuals) -> _Ticket:
        ticket: _Ticket = torch.Tensor._make_subclass(cls, torch.empty(0))
        ticket.residuals = residuals
        return ticket

    def detach(self) -> _Ticket:
        """Itself: `torch.utils.checkpoint` hands on a detached tensor in place of each that was saved."""
        return self


def apply(
    program: TorchProgram,
    tensors: Sequence[Any],
    of: TorchProgram | None = None,
    residuals: Residuals | None = None,
    budget: int | None = None,
) -> list[Any]:
    """The results of a program as tensors that PyTorch differentiates."""
    if not program.results:
        return []
    wrt: tuple[int, ...] = ()
    if torch.is_grad_enabled() and program.floats:
        wrt = tuple(i for i, x in enumerate(tensors) if x.requires_grad)
    operation: Any = _Run
    found = operation.apply(Call(program, wrt, of, residuals, budget=budget), *tensors)
    return list(found)


class _Run(torch.autograd.Function):
    """`_Run.apply(call, *tensors)` is a tuple of the program's results."""

    @staticmethod
    def forward(call: Call, *tensors: Any) -> Any:
        return tuple(map(to_tensor, call.run([to_array(x) for x in tensors])))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        call, *tensors = inputs
        ctx.program, ctx.budget = call.program, call.budget
        ctx.set_materialize_grads(False)
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
        tensors, tickets = saved[:count], saved[count:]
        kept = getattr(tickets[0], "residuals", None) if tickets else None
        wrt = kept.wrt if kept is not None else tuple(i for i in range(count) if ctx.needs_input_grad[i + 1])
        seeds = [_seed(cotangents[i], *ctx.results[i]) for i in program.floats]
        found = apply(program.pullback(wrt), [*tensors, *seeds], program, kept, ctx.budget)
        gradients = dict(zip(wrt, map(_conjugate, found), strict=True))
        return (None, *(gradients.get(i) for i in range(count)))

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        program: TorchProgram = ctx.program
        wrt = tuple(i for i, t in enumerate(tangents) if t is not None)
        given = [*ctx.saved_tensors[: len(tangents)], *(tangents[i] for i in wrt)]
        found = apply(program.tangent(wrt), given, budget=ctx.budget)
        moved = dict(zip(program.floats, found, strict=True))
        return tuple(moved.get(i) for i in range(len(ctx.results)))

    @staticmethod
    def vmap(info: Any, in_dims: Any, call: Call, *tensors: Any) -> Any:
        axes = tuple(axis if axis is None else axis % x.ndim for axis, x in zip(in_dims[1:], tensors, strict=True))
        found = tuple(apply(call.program.batched(axes, info.batch_size), tensors, budget=call.budget))
        return found, (0,) * len(found)


def _seed(cotangent: Any, shape: Any, dtype: Any) -> Any:
    return torch.zeros(shape, dtype=dtype) if cotangent is None else _conjugate(cotangent)


def _conjugate(x: Any) -> Any:
    """PyTorch's gradient of complex numbers is the conjugate of the cotangent."""
    return x.conj() if x.is_complex() else x


__all__ = ["apply"]
