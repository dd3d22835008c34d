"""Advice for errors: replacements for what a traced tensor refuses (in-place methods, names of other libraries)."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from typing import Any

from ctrlgrad.errors import MissingAttributeError, TracingError
from ctrlgrad.frontend.functions import FUNCTIONS, ours
from ctrlgrad.source import in_converted_code, library_function, user_operation

RETURN_IT = "leave it out: a traced tensor has no numbers yet; return it, and the result is a NumPy array"
_IN_PLACE_OF = {
    "numpy": RETURN_IT,
    "cpu": RETURN_IT,
    "block_until_ready": RETURN_IT,
    "backward": "ctrlgrad.grad(fn) gives the gradient of a function",
    "requires_grad": "ctrlgrad.grad(fn, argnums=...) says what is differentiated",
    "requires_grad_": "ctrlgrad.grad(fn, argnums=...) says what is differentiated",
    "grad": "ctrlgrad.grad(fn) gives the gradient of a function",
    "detach": "ctrlgrad.stop_gradient(x)",
    "clone": "leave it out: a traced tensor never changes",
    "view": "x.reshape(shape)",
    "unsqueeze": "ctrlgrad.numpy.expand_dims(x, axis), or x[None]",
    "permute": "x.transpose(axes)",
    "float": "x.astype('float32')",
    "double": "x.astype('float64')",
    "long": "x.astype('int64')",
    "to": "x.astype(dtype), and ctrlgrad.device(...) around the code for a device",
    "assign": "return the new value; x.at[index].set(value) changes a part",
    "set_shape": "declare sizes by ctrlgrad.TensorSpec in the signature",
    "sort": "x = ctrlgrad.numpy.sort(x): a traced tensor is not sorted in place",
    "partition": "x = ctrlgrad.numpy.sort(x): a traced tensor is not sorted in place",
    "argpartition": "ctrlgrad.numpy.argsort(x)",
    "fill": "x = ctrlgrad.numpy.full_like(x, value)",
    "put": "x = x.ravel().at[indices].set(values).reshape(x.shape)",
    "itemset": "x = x.at[index].set(value)",
    "resize": "x = x.reshape(shape); ctrlgrad.numpy.pad and x[:n] change the number of elements",
    "setfield": "x = x.at[index].set(value)",
    "setflags": "leave it out: a traced tensor never changes",
    "byteswap": "leave it out: a traced tensor has no bytes",
    "newbyteorder": "leave it out: a traced tensor has no bytes",
    "flat": "x.ravel()",
    "ptp": "x.max() - x.min()",
    "compress": "x[condition]",
    "choose": "ctrlgrad.numpy.where(condition, a, b), or ctrlgrad.numpy.stack(choices)[i]",
    "nbytes": "x.size * x.dtype.itemsize",
    "itemsize": "x.dtype.itemsize",
    **dict.fromkeys(("tobytes", "tostring", "tofile", "dump", "dumps", "data", "ctypes"), RETURN_IT),
}
# In place of an assignment to an attribute.
SET_BY = {
    "shape": "x = x.reshape(shape)",
    "dtype": "x = x.astype(dtype)",
    "real": "x = ctrlgrad.numpy.make_complex(real, ctrlgrad.numpy.imag(x))",
    "imag": "x = ctrlgrad.numpy.make_complex(ctrlgrad.numpy.real(x), imag)",
    "flat": "x = ctrlgrad.numpy.reshape(values, x.shape)",
}


# In place of SciPy's solvers, whose iterations call the user's function with numbers.
_SOLVERS = {
    "scipy.integrate": "write its steps as a while_loop (recipe 'Adaptive solvers with events'),\n"
    "or read one of JAX: ctrlgrad.from_jax(fn), where fn calls diffrax",
    "scipy.optimize": "write its steps as a while_loop, and ctrlgrad.custom_root for the derivative of a solution;\n"
    "SciPy takes gradients of this library: minimize(fn, x, jac=ctrlgrad.grad(fn))",
}
_TRAIN_BY = "optimiser = ctrlgrad.optim.adam(rate); updates, state = optimiser.update(grads, state, params)"
_FUNCTIONS_OF_PARAMETERS = "a pytree of arrays, and functions of it; ctrlgrad.nn.Linear and others make both"
# In place of other libraries' names on a module of this one.
_IN_PLACE_ON = {
    "ctrlgrad": {
        **dict.fromkeys(("tensor", "as_tensor", "from_numpy", "Tensor", "Variable"), "ctrlgrad.numpy.asarray(values)"),
        **dict.fromkeys(("convert_to_tensor", "constant"), "ctrlgrad.numpy.asarray(values)"),
        **dict.fromkeys(("no_grad", "inference_mode"), "leave it out: what is not differentiated costs nothing"),
        "enable_grad": "leave it out: ctrlgrad.grad(fn) asks for a gradient where one is wanted",
        "GradientTape": "ctrlgrad.grad(fn) gives the gradient of a function",
        "autograd": "ctrlgrad.grad(fn), and ctrlgrad.custom_vjp for a rule of your own",
        "compile": "ctrlgrad.function(fn)",
        "manual_seed": "key = ctrlgrad.random.key(seed), which is passed on",
        "experimental": "ctrlgrad.lax and ctrlgrad.numpy; "
        "a solver of differential equations is a while_loop of yours (recipe 'Adaptive solvers with events')",
        **dict.fromkeys(("linen", "flax", "eqx", "haiku"), "ctrlgrad.nn, or ctrlgrad.from_jax(fn)"),
        "backward": "ctrlgrad.grad(fn) gives the gradient of a function",
        "save": "safetensors.numpy.save_file of a flat dict of arrays; ctrlgrad.tree.leaves_with_path names them",
        "load": "safetensors.numpy.load_file, into a flat dict of arrays",
        "func": "ctrlgrad.grad, ctrlgrad.vmap, ctrlgrad.jvp and ctrlgrad.vjp themselves",
        **dict.fromkeys(("float32", "float64", "int32", "int64", "bool"), "the dtype of numpy, or its name as a text"),
        "bfloat16": "ctrlgrad.numpy.bfloat16",
        "cuda": "engine='cuda' of ctrlgrad.function, or ctrlgrad.device('cuda:0') around code",
        "pmap": "ctrlgrad.vmap on one device; mpirun -n 2 ctrlgrad train shares a batch between processes",
        "make_jaxpr": "print(ctrlgrad.function(fn).graph(*arguments))",
        "device_put": "leave it out: an argument goes where the function runs",
        "device_get": "numpy.asarray(x)",
        "block_until_ready": "leave it out: a result is there when the call returns",
        "ShapeDtypeStruct": "ctrlgrad.TensorSpec(shape, dtype)",
        "named_call": "leave it out; while_loop and others take a name=",
        "config": "ctrlgrad.options(default_float='float32') and others",
    },
    "ctrlgrad.nn": {
        **dict.fromkeys(("Module", "Parameter", "ModuleList", "ParameterList"), _FUNCTIONS_OF_PARAMETERS),
        "Sequential": "write the calls one after the other: layer2(params['2'], layer1(params['1'], x))",
        "CrossEntropyLoss": "ctrlgrad.nn.cross_entropy(logits, targets)",
        "NLLLoss": "ctrlgrad.nn.cross_entropy(logits, targets), of logits",
        "MSELoss": "ctrlgrad.numpy.mean((x - y) ** 2)",
        "mse_loss": "ctrlgrad.numpy.mean((x - y) ** 2)",
        "L1Loss": "ctrlgrad.numpy.mean(ctrlgrad.numpy.abs(x - y))",
        "CTCLoss": "ctrlgrad.nn.ctc_loss(logits, targets, frames, lengths)",
        "BCEWithLogitsLoss": "ctrlgrad.numpy.mean(ctrlgrad.nn.softplus(x) - x * y)",
        "Dropout": "ctrlgrad.nn.dropout(key, x, rate)",
        "LSTMCell": "ctrlgrad.nn.lstm_init(key, inputs, hidden) and ctrlgrad.nn.lstm_cell(params, (h, c), x)",
        "GRUCell": "ctrlgrad.nn.gru_init(key, inputs, hidden) and ctrlgrad.nn.gru_cell(params, (h,), x)",
        "RNNCell": "ctrlgrad.nn.rnn_init(key, inputs, hidden) and ctrlgrad.nn.rnn_cell(params, (h,), x)",
        "MultiheadAttention": "ctrlgrad.nn.MultiHeadAttention(features, heads)",
        "Embed": "ctrlgrad.nn.Embedding(words, features)",
        "Dense": "ctrlgrad.nn.Linear(inputs, outputs)",
        "RMSNorm": "ctrlgrad.nn.rms_norm(x, scale)",
        **dict.fromkeys(("Conv1d", "Conv2d", "Conv3d", "Conv"), "ctrlgrad.lax.conv(x, w, strides, padding)"),
        **dict.fromkeys(("MaxPool2d", "AvgPool2d"), "ctrlgrad.lax.reduce_window"),
        **dict.fromkeys(
            ("BatchNorm", "BatchNorm1d", "BatchNorm2d"), "ctrlgrad.nn.standardize(x, axis=0), or ctrlgrad.nn.LayerNorm"
        ),
        **dict.fromkeys(
            ("Transformer", "TransformerEncoderLayer", "TransformerDecoderLayer"),
            "ctrlgrad.nn.MultiHeadAttention, LayerNorm and Linear, called one after the other",
        ),
        "scan": "ctrlgrad.scan, or ctrlgrad.nn.LSTM(inputs, hidden) over a whole sequence",
        "Flatten": "x.reshape(x.shape[0], -1)",
        "functional": "the functions stand in ctrlgrad.nn itself",
        "utils": "ctrlgrad.optim.clip_by_global_norm(limit); lengths of sequences go to ctrlgrad.nn.LSTM as they are",
        "init": "ctrlgrad.nn.initializers",
        **{
            name: f"ctrlgrad.nn.{instead}"
            for name, instead in {
                "ReLU": "relu",
                "ReLU6": "relu6",
                "GELU": "gelu",
                "SiLU": "silu",
                "ELU": "elu",
                "SELU": "selu",
                "CELU": "celu",
                "LeakyReLU": "leaky_relu",
                "Tanh": "tanh",
                "Sigmoid": "sigmoid",
                "Softmax": "softmax",
                "LogSoftmax": "log_softmax",
                "Softplus": "softplus",
                "Softsign": "soft_sign",
                "GLU": "glu",
                "Hardtanh": "hard_tanh",
                "Mish": "mish",
                "Identity": "identity",
            }.items()
        },
    },
    "ctrlgrad.scipy": {
        "integrate": _SOLVERS["scipy.integrate"],
        "optimize": _SOLVERS["scipy.optimize"],
        "stats": "ctrlgrad.random draws of distributions, and ctrlgrad.scipy.special has the functions of densities",
        "signal": "ctrlgrad.numpy.convolve and ctrlgrad.lax.conv_general_dilated",
    },
    "ctrlgrad.optim": {
        **{
            name: f"ctrlgrad.optim.{instead}; {_TRAIN_BY}"
            for name, instead in {
                "Adam": "adam(rate)",
                "AdamW": "adamw(rate)",
                "SGD": "sgd(rate)",
                "RMSprop": "rmsprop(rate)",
                "Adagrad": "adagrad(rate)",
                "NAdam": "adam(rate, nesterov=True)",
                "Optimizer": "chain(...)",
            }.items()
        },
        "lr_scheduler": "a schedule in place of the rate: ctrlgrad.optim.cosine_decay_schedule(rate, steps)",
        "clip_grad_norm_": "ctrlgrad.optim.chain(ctrlgrad.optim.clip_by_global_norm(limit), optimiser)",
        "warmup_cosine": "ctrlgrad.optim.warmup_cosine_decay_schedule",
        "Optimiser": "ctrlgrad.optim.GradientTransformation",
    },
}


def no_such_name(module: str, name: str, names: Mapping[str, Any]) -> AttributeError:
    """The error of a name that a module does not have, with the name that it has in that place."""
    missing = f"module {module!r} has no attribute {name!r}"
    hint = _IN_PLACE_ON[module].get(name)
    if hint is None and module == "ctrlgrad" and hasattr(sys.modules.get("ctrlgrad.numpy"), name):
        hint = f"ctrlgrad.numpy.{name}"
    if hint is None:
        close = difflib.get_close_matches(name, [n for n in names if not n.startswith("_")], 1)
        hint = f"{module}.{close[0]}" if close else None
    if hint is None or name.startswith("__"):
        return AttributeError(missing)
    return MissingAttributeError(missing, hint=hint)


def instead_of_bool(argument: str = "") -> str:
    """Advice in place of Python's decision on a traced tensor; `argument` may be meant as a flag of Python's."""
    decisions = (
        "use ctrlgrad.cond for `if`, ctrlgrad.while_loop for `while`, numpy.where to choose elementwise,\n"
        "numpy.logical_and / logical_or / logical_not for `and` / `or` / `not`; "
    )
    if argument.isidentifier():
        decisions += f"for a flag that Python decides on,\nctrlgrad.function(static_argnames={argument!r}); "
    if in_converted_code():
        return (
            f"{decisions}autograph leaves\n"
            "comprehensions, comparisons of lists and what packages do to Python: write a `for` and an `if`"
        )
    return f"{decisions}or keep the Python and let\nctrlgrad.function(autograph=True) turn it into them"


def instead_of(name: str) -> str:
    """Return the replacement for a method or attribute that a tensor does not have."""
    if name in _IN_PLACE_OF:
        return _IN_PLACE_OF[name]
    return f"ctrlgrad.numpy.{name}(x)" if name in FUNCTIONS else "see ctrlgrad.numpy for the functions that there are"


# Of Python's operations on the user's line, by the names of their codes.
_ASSIGNS = ("STORE_SUBSCR", "STORE_SLICE")
_INDEXES = ("BINARY_SUBSCR", "BINARY_SLICE")
_ASSIGN = (
    "an assignment to a part of a NumPy array",
    "ctrlgrad.numpy.at(y)[index].set(x) gives the changed array; .add and others are there too",
)
_INDEX = (
    "indexing a NumPy array or a list by it",
    """make it an array of this library's: ctrlgrad.numpy.asarray(xs)[t], and ctrlgrad.numpy.stack(items)[t] of a list;
or pass xs to the function as an argument""",
)


def what_the_user_does(otherwise: str, hint: str) -> tuple[str, str]:
    """Return the operation that asks a tensor for its value, as the user sees it, and its replacement."""
    operation, called = user_operation(), library_function()
    if operation in _ASSIGNS:
        return _ASSIGN
    if called is not None:
        instead = ours(*called)
        return ".".join(called), f"{instead}, which takes traced values" if instead else _SOLVERS.get(called[0], hint)
    return _INDEX if operation in _INDEXES else (otherwise, hint)


def refuse_torch(cls: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Refuse a function of PyTorch on a traced tensor. While PyTorch's code is traced it does not come here."""
    raise TracingError(
        f"PyTorch's function {getattr(func, '__name__', func)!r} is called on a traced tensor of this library",
        expected="functions of ctrlgrad.numpy",
        got=", ".join(repr(x) if hasattr(x, "builder") else type(x).__name__ for x in args),
        hint="ctrlgrad.from_torch(fn) is a function of this library that runs PyTorch's operators",
    )
