"""PyTorch's own code run on traced tensors: each operator that it reaches is looked up in the table.

A `TracedTensor` is a tensor to PyTorch, with sizes and a dtype, and holds a value of the trace that goes on, or a known
array. While a `Trace` is entered all functions of `torch` come to it, first as the user calls them (`functions.py`),
then as operators of ATen, by `__torch_dispatch__`. One without an entry in the table is read through PyTorch's
decomposition of it. PyTorch states dtypes and sizes of results by running the operator on fake tensors.

Python's control flow is autograph's, to which a `Trace` says which value a tensor holds.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

import ctrlgrad.numpy as cnp
from ctrlgrad.autograph.values import REPRESENTATION, SAME
from ctrlgrad.blocks import holding
from ctrlgrad.errors import TracingError
from ctrlgrad.frontend import trace as tracing
from ctrlgrad.frontend.apply import cast, type_of
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.interop.torch.entries import TABLE, arguments, find, name_of, promoted, unsupported
from ctrlgrad.interop.torch.networks import batch_norm
from ctrlgrad.interop.torch.operators import at
from ctrlgrad.interop.torch.tensors import DTYPES, to_array, to_tensor
from ctrlgrad.interop.torch.values import Storage, TracedTensor, View, outside, value_of, written
from ctrlgrad.transforms.grad import stop_gradient

# PyTorch's functions as the user calls them, while a trace goes on.
#
# Here recurrent networks are still one operator, indices and numbers may be traced, and `item()` gives a number of
# the trace.


class Functions(TorchFunctionMode):
    """PyTorch's functions as the user calls them."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.trace = trace

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        special = _SPECIAL.get(func)
        if special is not None:
            found = special(self.trace, *args, **kwargs)
            if found is not NotImplemented:
                return found
        whole = _WHOLE.get(func)
        if whole is not None and any(map(_is_traced, _pytree.arg_tree_leaves(*args, **kwargs))):
            given, named = (_pytree.tree_map(self.trace.value, x) for x in (list(args), kwargs))
            found = TABLE[whole](*given, **named)
            return tuple(map(self.trace.wrap, found)) if isinstance(found, tuple) else self.trace.wrap(found)
        if any(isinstance(x, Tensor) for x in _pytree.arg_tree_leaves(*args, **kwargs)):
            args, kwargs = (_pytree.tree_map(self._number, x) for x in (args, kwargs))
        if func in _FACTORIES:
            args, kwargs = (_pytree.tree_map(self._as_size, x) for x in (args, kwargs))
        return func(*args, **kwargs)

    def _number(self, x: Any) -> Any:
        """A number of the trace as PyTorch takes it: a whole one may be a size."""
        if not isinstance(x, Tensor):
            return x
        return self.trace.size(x) if x.dtype.kind in "iu" and not x.ndim else self.trace.wrap(x)

    def _as_size(self, x: Any) -> Any:
        if isinstance(x, TracedTensor) and x.dtype in (torch.int64, torch.int32) and not x.dim():
            return self.trace.size(value_of(x))
        return x


def _is_traced(x: Any) -> bool:
    return isinstance(x, TracedTensor) and isinstance(value_of(x), Tensor)


def _item(trace: Trace, x: Any) -> Any:
    """The number of a tensor: a traced one stands for a Python number."""
    value = trace.number(x)
    if not isinstance(value, Tensor):
        return value.item()
    scalar = cnp.reshape(value, ())
    return Tensor(scalar.builder, scalar.value, weak=True)


def _refused(what: str) -> Callable[..., Any]:
    def refuse(trace: Trace, x: Any, *more: Any, **named: Any) -> Any:
        value = value_of(x)
        if not isinstance(value, Tensor):
            return NotImplemented
        return getattr(value, what)(*more)

    return refuse


def _has_traced_key(key: Any) -> bool:
    parts = key if isinstance(key, tuple) else (key,)
    return any(
        isinstance(k, Tensor)
        or (isinstance(k, TracedTensor) and not k.dim() and k.dtype != torch.bool and _is_traced(k))
        or (isinstance(k, slice) and any(isinstance(b, Tensor | TracedTensor) for b in (k.start, k.stop, k.step)))
        for k in parts
    )


def _plain_key(trace: Trace, key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(_plain_key(trace, k) for k in key)
    if isinstance(key, slice):
        return slice(*(_plain_key(trace, b) for b in (key.start, key.stop, key.step)))
    return trace.value(key)


def _getitem(trace: Trace, x: Any, key: Any) -> Any:
    """An element at a place that is traced."""
    if not _has_traced_key(key):
        return NotImplemented
    return trace.wrap(at(value_of(x), _plain_key(trace, key)))


def _setitem(trace: Trace, x: Any, key: Any, new: Any) -> Any:
    if new is SAME:
        return None
    if not _has_traced_key(key):
        return NotImplemented
    found = cnp.at(value_of(x))[_plain_key(trace, key)].set(trace.value(new))
    trace.store(x, trace.wrap(found), "item assignment")
    return None


def _pack(trace: Trace, x: Any, lengths: Any, batch_first: bool) -> Any:
    if not _is_traced(x) and not _is_traced(lengths):
        return NotImplemented
    data, counts = TABLE["_pack_padded_sequence"](value_of(x), value_of(lengths), batch_first)
    data, counts = trace.wrap(data), trace.wrap(counts)
    counts.first = x.shape[0 if batch_first else 1]
    return data, counts


def _ctc_loss(
    trace: Trace,
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:
    if not _is_traced(log_probs):
        return NotImplemented
    given = [trace.value(x) for x in (log_probs, targets, input_lengths, target_lengths)]
    how = ("none", "mean", "sum").index(reduction)
    return trace.wrap(TABLE["ctc_loss"](*given, blank, how, zero_infinity))


_SPECIAL: dict[Any, Callable[..., Any]] = {
    torch.nn.functional.ctc_loss: _ctc_loss,
    torch.Tensor.item: _item,
    torch.Tensor.__bool__: _refused("__bool__"),
    torch.Tensor.__int__: _refused("__int__"),
    torch.Tensor.__float__: _refused("__float__"),
    torch.Tensor.__index__: _refused("__index__"),
    torch.Tensor.tolist: _refused("tolist"),
    torch.Tensor.numpy: _refused("__array__"),
    torch.Tensor.__array__: _refused("__array__"),
    torch.Tensor.__getitem__: _getitem,
    torch.Tensor.__setitem__: _setitem,
    torch._C._VariableFunctions._pack_padded_sequence: _pack,
}
_VF = torch._C._VariableFunctions
# Functions that PyTorch would take apart before the table sees them.
_WHOLE: dict[Any, str] = {
    **{getattr(_VF, name): name for name in ("lstm", "gru", "rnn_tanh", "rnn_relu", "_pad_packed_sequence")},
    **{getattr(_VF, name): name for name in ("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell", "ctc_loss")},
    torch._C._nn.linear: "linear",
    torch._C._nn.scaled_dot_product_attention: "scaled_dot_product_attention",
}
_FACTORIES = {torch.zeros, torch.ones, torch.full, torch.empty, torch.arange, torch.eye}


_TORCH_DTYPES = {dtype: name for name, dtype in DTYPES.items()}


class Trace(TorchDispatchMode):
    """The span in which PyTorch's code is traced."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Without this PyTorch would load its compiler at the first operator."""
        return False

    def __init__(self) -> None:
        super().__init__()
        self.shape_env = ShapeEnv()
        self.fake = FakeTensorMode(shape_env=self.shape_env, allow_non_fake_inputs=True)
        # The sizes that are known only when the program runs, by PyTorch's symbols.
        self.symbols: dict[Any, Any] = {}
        self.functions = Functions(self)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        try:
            with holding(REPRESENTATION, self), self, self.functions:
                yield
        except Exception:
            # PyTorch and the table refuse symbols where they take numbers, each with an error of its own.
            if self.symbols:
                tracing.note_number()
            raise

    # Values as tensors, and back.

    def plain(self, x: Any) -> Any:
        """The value of a tensor, or of one of PyTorch's symbols."""
        return self.value(x) if isinstance(x, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool) else x

    def number(self, x: Any) -> Any:
        """The value of a tensor as Python's number, through which PyTorch sends no gradient."""
        value = self.plain(x)
        return stop_gradient(value) if isinstance(x, torch.Tensor) and isinstance(value, Tensor) else value

    def represented(self, x: Any) -> Any:
        """A new tensor with this value."""
        return self.wrap(x)

    def stands(self, x: Any, value: Any) -> bool:
        """Return true if a tensor of the region that is being traced still has this value."""
        if not isinstance(x, TracedTensor) or x.storage.builder is not tracing.current():
            return False
        held = value_of(x)
        return held.value is value.value if isinstance(held, Tensor) and isinstance(value, Tensor) else held is value

    def wrap(self, value: Any) -> TracedTensor:
        """A value as a tensor."""
        t = type_of(value)
        shape = tuple(
            self.size(value.shape[axis]) if d is None else d
            for axis, d in enumerate(t.shape)  # type: ignore[union-attr]
        )
        with outside(), self.fake:
            fake = torch.empty(shape, dtype=_TORCH_DTYPES[t.dtype])  # type: ignore[union-attr]
        return TracedTensor(fake, Storage(value if isinstance(value, Tensor) else np.asarray(value)))

    def size(self, value: Any) -> Any:
        """A traced whole number as one of PyTorch's symbols."""
        if not isinstance(value, Tensor):
            return int(value)
        if (number := value.builder.number(value.value)) is not None:
            return int(number)
        for symbol, known in self.symbols.items():
            if isinstance(known, Tensor) and known.value is value.value:
                return self.shape_env.create_symintnode(symbol, hint=None)
        made: Any = self.shape_env.create_unbacked_symint()
        torch._check(made >= 0)
        self.symbols[made.node.expr] = value
        return made

    def symbolic(self, x: Any) -> Any:
        """One of PyTorch's symbolic numbers as a value."""
        expression = x.node.expr
        if expression.is_number:
            return int(expression) if isinstance(x, torch.SymInt) else float(expression)
        return self._evaluated(expression)

    def _evaluated(self, e: Any) -> Any:
        if e in self.symbols:
            return self.symbols[e]
        if e.is_number:
            return int(e) if e.is_integer else float(e)
        parts = [self._evaluated(part) for part in e.args]
        fn = _ARITHMETIC.get(type(e).__name__)
        if fn is None:
            raise unsupported(f"arithmetic of sizes: {type(e).__name__}")
        found = parts[0]
        for part in parts[1:]:
            found = fn(found, part)
        return found

    def value(self, x: Any) -> Any:
        """An argument of an operator as the table takes it."""
        if isinstance(x, torch.Tensor):
            return value_of(x)
        if isinstance(x, torch.SymInt | torch.SymFloat | torch.SymBool):
            return self.symbolic(x)
        return x

    def _fake(self, x: Any) -> Any:
        if isinstance(x, TracedTensor):
            return x.fake
        return self.fake.from_tensor(x) if isinstance(x, torch.Tensor) else x

    # Operators.

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = name_of(func)
        if func in _PRIMS:
            return func(*args, **kwargs)
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        if is_random and find(func) is None and name.split(".")[0] != "bernoulli_":
            raise unsupported(name)
        leaves = _pytree.arg_tree_leaves(*args, **kwargs)
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        symbolic = any(isinstance(x, torch.SymInt | torch.SymFloat) for x in leaves)
        known = not symbolic and not any(isinstance(value_of(x), Tensor) for x in tensors)
        if func._schema.is_mutable:
            return self._write(func, name, args, kwargs)
        if name == "native_batch_norm" and args[5]:
            return self._batch_norm(args)
        if known and not is_random:
            # The results of an operator whose operands are all known, by PyTorch.
            if func.is_view and isinstance(args[0], TracedTensor):
                return self._applied(func, name_of(func), args, kwargs)
            plain = lambda x: to_tensor(value_of(x)) if isinstance(x, TracedTensor) else x
            with outside():
                found = func(*_pytree.tree_map(plain, args), **_pytree.tree_map(plain, kwargs))
                own = lambda x: self.wrap(to_array(x).copy()) if isinstance(x, torch.Tensor) else x
                return _pytree.tree_map(own, found)
        if name in ("_local_scalar_dense", "is_nonzero"):
            return value_of(args[0]).__bool__()
        if name in _PHYSICAL:
            func = _PHYSICAL[name]
        if name == "select.int" and args[0].first is not None and args[1:] == (0, 0):
            return self.wrap(np.asarray(args[0].first))
        return self._applied(func, name, args, kwargs)

    def _applied(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        entry = find(func)
        if entry is None:
            decomposition = decomposition_table.get(func, func.decompose)
            with self:
                found = decomposition(*args, **kwargs)
            if found is NotImplemented:
                raise unsupported(name)
            return found
        with self.fake:
            stated = func(*_pytree.tree_map(self._fake, args), **_pytree.tree_map(self._fake, kwargs))
        given, named = arguments(_pytree.tree_map(self.value, list(args)), _pytree.tree_map(self.value, kwargs))
        first = stated[0] if isinstance(stated, tuple | list) and stated else stated
        dtype = DTYPES.get(first.dtype) if isinstance(first, torch.Tensor) else None
        results = entry(*promoted(func, given, dtype), **named)
        if isinstance(stated, tuple | list):
            many = [self._result(x, y) for x, y in zip(stated, results, strict=False)]
            if func.is_view:
                many = [self._view(x, args, View(name, i, given, named)) for i, x in enumerate(many)]
            return many if isinstance(stated, list) else tuple(many)
        found = self._result(stated, results)
        return self._view(found, args, View(name, None, given, named)) if func.is_view else found

    def _result(self, fake: Any, value: Any) -> Any:
        """A result with the dtype that PyTorch states; sizes that it does not know are those of the value."""
        if not isinstance(fake, torch.Tensor):
            return fake
        value = cast(value, DTYPES[fake.dtype])
        for axis, n in enumerate(fake.shape):
            if isinstance(n, torch.SymInt) and n.node.expr.is_Symbol and n.node.expr not in self.symbols:
                self.symbols[n.node.expr] = value.shape[axis]
        if not torch.is_grad_enabled() and isinstance(value, Tensor) and value.dtype.kind in "fcV":
            value = stop_gradient(value)
        return TracedTensor(fake, Storage(value))

    @staticmethod
    def _view(found: Any, args: Any, view: View) -> Any:
        """A result that shares the memory of an operand: a change of one is a change of the other."""
        base = args[0]
        if isinstance(base, TracedTensor) and isinstance(found, TracedTensor) and view.name != "detach":
            value, found.views = found.storage.value, (*base.views, view)
            found.storage = base.storage
            found._seen = (base.storage.version, value)
        return found

    def _write(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """An operator that changes a tensor: its result by the operator that changes none."""
        plain, overload = name.split(".")[0], func._overloadname
        if plain == "_native_batch_norm_legit":
            return self._batch_norm(args)
        if plain in ("resize_", "set_", "squeeze_", "unsqueeze_", "transpose_", "t_", "as_strided_", "swapaxes_"):
            raise unsupported(name, reason="it changes the sizes of a tensor in place")
        out = kwargs.get("out")
        if out is not None:
            kwargs = {k: x for k, x in kwargs.items() if k != "out"}
            overload = "default" if overload == "out" else overload.removesuffix("_out")
        target = args[0] if out is None else out
        with self:
            if plain == "copy_":
                found = torch.ops.aten.expand.default(torch.as_tensor(args[1]), list(target.shape))
            elif plain == "zero_":
                found = torch.ops.aten.zeros_like.default(target)
            elif name == "bernoulli_.float":
                found = torch.ops.aten.bernoulli.p(target, *(args[1:] or (kwargs.get("p", 0.5),)))
            else:
                packet = getattr(torch.ops.aten, plain.removesuffix("_") if out is None else plain)
                found = getattr(packet, overload)(*args, **kwargs)
        self.store(target, found, name)
        return target

    def store(self, target: Any, found: Any, name: str) -> None:
        """Replace the value of a tensor, and of all tensors that share its memory, by a computed one."""
        if not isinstance(target, TracedTensor):
            raise TracingError(
                f"from_torch: {name} changes a tensor that was made outside of the traced function",
                expected="in-place operators on tensors that the function makes, and on buffers of the module",
                got=f"{target.dtype}{list(target.shape)}",
                hint="make it a buffer (register_buffer), or an argument and a result of the function",
            )
        storage, value = target.storage, cast(value_of(found), DTYPES[target.dtype])
        if storage.builder is not tracing.current():
            raise TracingError(
                f"from_torch: {name} changes, inside of a traced loop or branch, a tensor that was made outside of it",
                expected="variables that the loop or branch assigns anew",
                got=f"{target!r}, changed in place",
                hint="write x = x + y in place of x.add_(y), and out = out.index_copy(0, i, row) for out[i] = row",
            )
        if tuple(target.shape) != tuple(getattr(found, "shape", ())):
            with self:
                value = value_of(torch.ops.aten.expand.default(found, list(target.shape)))
                value = cast(value, DTYPES[target.dtype])
        if not torch.is_grad_enabled():
            value = _with_gradient_of(value_of(target), value)
        storage.value = written(storage.value, target.views, value, name)
        storage.version += 1

    def _batch_norm(self, args: Any) -> Any:
        """Batch normalisation, whose running mean and variance change."""
        found, own, scale, mean, var = batch_norm(*(self.value(x) for x in args[:8]))
        if args[3] is not None and args[5]:
            self.store(args[3], self.wrap(mean), "batch_norm")
            self.store(args[4], self.wrap(var), "batch_norm")
        return tuple(self.wrap(x) for x in (found, own, scale))


_PRIMS = (
    {torch.ops.prim.device.default}
    | {getattr(torch.ops.aten, name).default for name in ("sym_size", "sym_stride") if hasattr(torch.ops.aten, name)}
    if hasattr(torch.ops.prim, "device")
    else set()
)

# Views that PyTorch resolves later, and the operators that compute them at once.
_PHYSICAL = {"_conj": torch.ops.aten.conj_physical.default, "_neg_view": torch.ops.aten.neg.default}

_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
}


def _with_gradient_of(old: Any, new: Any) -> Any:
    """New numbers of a tensor that was changed without a gradient: it keeps the one that it had."""
    if not isinstance(old, Tensor) or old.dtype.kind not in "fc":
        return new
    slope = cnp.where(cnp.isfinite(old), old - stop_gradient(old), cnp.zeros_like(old))
    return (stop_gradient(new) if isinstance(new, Tensor) else new) + slope
