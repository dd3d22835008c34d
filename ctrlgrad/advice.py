"""Advice in errors for names, keywords and calls that belong to another library or are misspelt."""

from __future__ import annotations

import difflib
import functools
import inspect
import operator
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from ctrlgrad.errors import MissingAttributeError, TypeMismatchError, UserInputError

# Advice for keywords of other libraries: `adam(lr=...)` names the argument that takes its place.


_KEY = "parameters are made by layer.init(ctrlgrad.random.key(0))"
# Advice by keyword, for functions without an argument of that name.
_INSTEAD = {
    "lr": "learning_rate={0}",
    "betas": "b1=..., b2=...",
    "beta1": "b1={0}",
    "beta2": "b2={0}",
    "alpha": "decay={0}",
    "epsilon": "eps={0}",
    "weight_decay": "ctrlgrad.optim.adamw(rate, weight_decay={0}), or\n"
    "ctrlgrad.optim.chain(ctrlgrad.optim.add_decayed_weights({0}), optimiser)",
    "maximize": "ctrlgrad.optim.chain(ctrlgrad.optim.scale(-1.0), optimiser)",
    "params": "optimiser.init(params) makes the state",
    "in_features": "inputs={0}",
    "input_size": "inputs={0}",
    "in_size": "inputs={0}",
    "out_features": "outputs={0}",
    "out_size": "outputs={0}",
    "hidden_size": "hidden={0}",
    "num_layers": "layers={0}",
    "use_bias": "bias={0}",
    "num_embeddings": "words={0}",
    "embedding_dim": "features={0}",
    "embedding_size": "features={0}",
    "normalized_shape": "features={0}",
    "shape": "features={0}",
    "embed_dim": "features={0}",
    "query_size": "features={0}",
    "num_heads": "heads={0}",
    "batch_first": "sequences are [time, batch, inputs]: ctrlgrad.numpy.swapaxes(xs, 0, 1)",
    "bidirectional": "call one layer on xs and another one on ctrlgrad.numpy.flip(xs, 0), and join their outputs",
    "dropout": "ctrlgrad.nn.dropout(key, x, {0}) between layers",
    "p": "rate={0}",
    "size": "shape={0}",
    "low": "minval={0}",
    "high": "maxval={0}",
    "loc": "{0} + scale * ctrlgrad.random.normal(key, shape)",
    "stddev": "mean + {0} * ctrlgrad.random.normal(key, shape)",
    "seed": "key=ctrlgrad.random.key({0})",
    "argnum": "argnums={0}",
    "epochs": "steps={0} * len(data)",
    "max_steps": "maximum_iterations={0}",
    "max_iter": "maximum_iterations={0}",
    "back_prop": "leave it out: ctrlgrad.stop_gradient ends a derivative",
    "shape_invariants": "ctrlgrad.unknown_dims(x, axes) around the carry's arrays",
    "key": _KEY,
    "rngs": _KEY,
    "device": "arrays lie where they are made; with engine='cuda' results stay on the card",
    "dtype": "layer.init(key, dtype={0})",
    "ignore_index": "where=targets != {0}",
    "reduction": "the mean is returned; ctrlgrad.vmap of the loss gives that of each row",
    "training": "call ctrlgrad.nn.dropout in training only",
    "inplace": "a function returns a new array",
    "gpu": "device={0}",
    "dim": "axis={0}",
    "keepdim": "keepdims={0}",
    "nonlinearity": "ctrlgrad.nn.rnn_cell has tanh; write another cell as a function of (params, state, x)",
}


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is spelt almost like this one; an empty text if there is none."""
    return next(iter(difflib.get_close_matches(name, list(known), 1)), "")


# Advice by choice, where the spelling tells nothing.
_CHOICES = {"gpu": "cuda", "cpu": "native"}


def check_choice(operation: str, name: str, given: Any, choices: Iterable[Any]) -> None:
    """Refuse an argument that is none of its choices; the advice is the choice that is spelt most like it."""
    known = tuple(choices)
    if given not in known:
        names, asked = {choice.lower(): choice for choice in known if isinstance(choice, str)}, str(given).lower()
        close = names.get(_CHOICES.get(asked, "")) or names.get(nearest(asked, names))
        raise UserInputError(
            f"{operation}: there is no such {name}",
            expected=" or ".join(map(repr, known)) or "none",
            got=repr(given),
            hint=repr(close or known[0]) if known else "leave it out",
        )


def instead_of_keyword(keyword: str, value: Any, known: Sequence[str]) -> str | None:
    """Advice for a keyword that a function with the `known` parameters does not have; None if there is none."""
    hint = _INSTEAD.get(keyword, "").format(repr(value))
    argument = hint.partition("=")[0]
    if hint and not (argument.isidentifier() and argument not in known):
        return hint
    close = nearest(keyword, known)
    return f"{close}={value!r}" if close else None


def instead_of_keywords(given: Mapping[str, Any], known: Sequence[str]) -> str:
    """Advice for the keywords of a call that a function with the `known` parameters does not have."""
    unknown = [instead_of_keyword(name, value, known) for name, value in given.items() if name not in known]
    return ",\n".join(filter(None, unknown))


# Advice for names of other libraries.


# In place of SciPy's solvers, whose iterations call the user's function with numbers.
SOLVERS = {
    "scipy.integrate": "write its steps as a while_loop (recipe 'Adaptive solvers with events'),\n"
    "or read one of JAX: ctrlgrad.from_jax(fn), where fn calls diffrax",
    "scipy.optimize": "write its steps as a while_loop, and ctrlgrad.custom_root for the derivative of a solution;\n"
    "SciPy takes gradients of this library: minimize(fn, x, jac=ctrlgrad.grad(fn))",
}
_TRAIN_BY = "optimiser = ctrlgrad.optim.adam(rate); updates, state = optimiser.update(grads, state, params)"
_FUNCTIONS_OF_PARAMETERS = "a pytree of arrays, and functions of it; ctrlgrad.nn.Linear, for example, makes both"
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
        "named_call": "leave it out; loops such as while_loop take a name=",
        "config": "ctrlgrad.options(default_float='float32') and its other options",
        "gradient": "ctrlgrad.grad(fn); of the samples in an array, ctrlgrad.numpy.gradient",
        "explain": "ctrlgrad.function(fn).explain(*arguments)",
        "graph": "ctrlgrad.function(fn).graph(*arguments)",
        "budget": "ctrlgrad.memory.budget('64 MiB'), around code",
        "profile": "with ctrlgrad.memory.profile() as profile, around code",
    },
    "ctrlgrad.numpy": {
        **{
            name: f"ctrlgrad.numpy.{instead}"
            for name, instead in {
                "cat": "concatenate",
                **{f"reduce_{name}": name for name in ("sum", "mean", "max", "min", "prod", "any", "all")},
                "clamp": "clip",
                "mm": "matmul",
                "bmm": "matmul",
                "permute": "transpose",
                "view": "reshape",
                "unsqueeze": "expand_dims",
                "masked_fill": "where(mask, value, x)",
                "index_select": "take",
                "gather": "take_along_axis",
                "tensor": "asarray",
                "div": "divide",
                "mul": "multiply",
                "sub": "subtract",
                "neg": "negative",
                "cast": "astype",
            }.items()
        },
        "scatter": "x.at[index].set(values)",
        "randn": "ctrlgrad.random.normal(key, shape)",
        "rand": "ctrlgrad.random.uniform(key, shape)",
        "numel": "x.size",
        "random": "ctrlgrad.random",
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
        "integrate": SOLVERS["scipy.integrate"],
        "optimize": SOLVERS["scipy.optimize"],
        "stats": "ctrlgrad.random draws of distributions, and ctrlgrad.scipy.special has the functions of densities",
        "signal": "ctrlgrad.numpy.convolve and ctrlgrad.lax.conv_general_dilated",
    },
    "ctrlgrad.random": {
        **dict.fromkeys(("seed", "default_rng"), "key = ctrlgrad.random.key(seed), which is passed on"),
        **dict.fromkeys(("rand", "random"), "ctrlgrad.random.uniform(key, shape)"),
        **dict.fromkeys(("randn", "standard_normal"), "ctrlgrad.random.normal(key, shape)"),
        "shuffle": "ctrlgrad.random.permutation(key, x)",
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


# The public modules in which a name is looked for that another one of them lacks.
_PUBLIC = (
    "numpy",
    "lax",
    "nn",
    "numpy.linalg",
    "numpy.fft",
    "scipy.special",
    "scipy.linalg",
    "random",
    "optim",
    "tree",
)


def _elsewhere(name: str) -> str | None:
    """The name with the public module that has it."""
    root = sys.modules["ctrlgrad"]
    if name in root.__all__:
        return f"ctrlgrad.{name}"
    return next((f"ctrlgrad.{m}.{name}" for m in _PUBLIC if name in operator.attrgetter(m)(root).__all__), None)


def no_such_name(module: str, name: str, names: Iterable[str]) -> AttributeError:
    """The error of a name that a module does not have, with the name that it has in that place."""
    missing = f"module {module!r} has no attribute {name!r}"
    if name.startswith("_"):
        return AttributeError(missing)
    hint = _IN_PLACE_ON.get(module, {}).get(name) or _IN_PLACE_ON["ctrlgrad.numpy"].get(name) or _elsewhere(name)
    if hint is None:
        close = nearest(name, getattr(sys.modules.get(module), "__all__", names))
        hint = f"{module}.{close}" if close else f"dir({module}) lists the names that there are"
    return MissingAttributeError(missing, hint=hint)


# In place of other libraries' attributes on an object.
_ATTRIBUTES = {
    "a layer": {
        **dict.fromkeys(
            ("parameters", "named_parameters", "state_dict", "variables", "trainable_variables", "params"),
            "params = layer.init(ctrlgrad.random.key(0)) makes the parameters, a pytree of arrays",
        ),
        **dict.fromkeys(("weight", "kernel", "w"), "params['w'], where params = layer.init(ctrlgrad.random.key(0))"),
        **dict.fromkeys(("forward", "apply", "call"), "layer(params, x)"),
        **dict.fromkeys(("train", "eval"), "leave it out: ctrlgrad.nn.dropout is called in training only"),
        **dict.fromkeys(("to", "cuda", "cpu"), "leave it out: arrays go where the function runs"),
        **dict.fromkeys(("float", "double", "half"), "layer.init(key, dtype='float32')"),
        "load_state_dict": "pass the loaded arrays as params: layer(params, x)",
        **dict.fromkeys(("zero_grad", "requires_grad_"), "leave it out: ctrlgrad.grad(loss)(params) gives it"),
    },
    "an optimiser": {
        **dict.fromkeys(
            ("step", "apply_gradients", "minimize", "apply"),
            "updates, state = optimiser.update(gradient, state, params); "
            "params = ctrlgrad.optim.apply_updates(params, updates)",
        ),
        "zero_grad": "leave it out: gradients are results and do not accumulate",
        **dict.fromkeys(("state_dict", "state", "param_groups"), "state = optimiser.init(params), a pytree of arrays"),
    },
    "a compiled function": {
        **dict.fromkeys(("lower", "trace", "get_concrete_function", "jaxpr"), "fn.graph(*arguments), which prints"),
        **dict.fromkeys(("compile", "cost_analysis", "memory_analysis"), "fn.explain(*arguments)"),
        "eval_shape": "ctrlgrad.eval_shape(fn, *arguments)",
        **dict.fromkeys(("backward", "grad"), "ctrlgrad.grad(fn)(*arguments)"),
    },
}


def no_such_attribute(what: str, x: object, name: str) -> AttributeError:
    """The error of an attribute that an object does not have, with the form that takes its place."""
    missing = f"{type(x).__name__!r} object has no attribute {name!r}"
    hint = _ATTRIBUTES[what].get(name)
    if hint is None:
        return AttributeError(missing, name=name, obj=x)
    return MissingAttributeError(missing, expected=f"attributes of {what}", got=f".{name}", hint=hint)


# Errors for calls with wrong arguments; they show the signature of the function.


P = ParamSpec("P")
R = TypeVar("R")
# Attribute of a function that explains its calls.
EXPLAINED = "_explains_calls"


def explains_calls(fn: Callable[P, R]) -> Callable[P, R]:
    """The function; where it is not called as its parameters ask for, the error says so at the user's line."""

    @functools.wraps(fn)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return fn(*args, **kwargs)
        except TypeError as error:
            if is_inside(error):
                raise
            raise misfit(fn, args, kwargs, error) from None

    vars(called)[EXPLAINED] = True
    return called


def is_inside(error: TypeError) -> bool:
    """Return true if the called function raised an error, false if the call itself did."""
    return error.__traceback__ is None or error.__traceback__.tb_next is not None


def misfit(fn: Callable[..., Any], args: Any, kwargs: Any, error: TypeError) -> TypeMismatchError:
    parameters = [name for name in inspect.signature(fn).parameters if name != "self"]
    owner, _, name = fn.__qualname__.rpartition(".")
    is_method = bool(owner) and not owner.endswith("<locals>")
    owner = type(args[0]).__name__ if is_method and args else owner
    call = name = owner.rpartition(".")[2] if name in ("__init__", "__call__") else name
    hint = f"name the parameters as above; help(ctrlgrad.{name}) says what they mean"
    if fn.__name__ == "__call__":
        call, hint = "layer", f"layer is the {name}; {_KEY}"
    elif not hasattr(sys.modules["ctrlgrad"], name):
        hint = "name the parameters as above"
    return TypeMismatchError(
        f"{name}: {str(error).removeprefix(f'{fn.__qualname__}() ')}",
        expected=f"{call}({', '.join(parameters)})",
        got=f"{len(args) - is_method} by position" + "".join(f", {name}=" for name in kwargs),
        hint=instead_of_keywords(kwargs, parameters) or hint,
    )


def explain_calls(names: dict[str, Any], public: Sequence[str]) -> None:
    """Have the public functions, classes and layers of a module explain their calls."""
    made: dict[Any, Any] = {}  # two names of one function stay that
    for name in public:
        found = names[name]
        if inspect.isfunction(found):
            if found.__module__.startswith("ctrlgrad") and not hasattr(found, EXPLAINED):
                names[name] = made[found] = made.get(found) or explains_calls(found)
        elif inspect.isclass(found):
            for method in vars(found).keys() & {"__init__", "__call__"}:
                setattr(found, method, explains_calls(vars(found)[method]))
