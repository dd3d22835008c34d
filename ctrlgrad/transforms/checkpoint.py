"""`checkpoint`: a function whose inside is computed again in the backward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ctrlgrad import tree
from ctrlgrad.errors import UserInputError
from ctrlgrad.frontend.arguments import argument_names
from ctrlgrad.frontend.checks import check_leaves
from ctrlgrad.frontend.rules import emit_call, trace_rule
from ctrlgrad.frontend.tracer import in_trace, leaves_of
from ctrlgrad.ir import close
from ctrlgrad.signature import Static, StaticArguments, python_values_static
from ctrlgrad.source import here


class checkpoint_policies:
    """What `checkpoint(policy=)` takes: which values inside are saved. JAX's functions of these names serve too."""

    @staticmethod
    def nothing_saveable(*_: Any, **__: Any) -> bool:
        """All is computed again: what `checkpoint` does without a policy."""
        return False

    @staticmethod
    def everything_saveable(*_: Any, **__: Any) -> bool:
        """Nothing need be computed again: what is saved is chosen as without `checkpoint`."""
        return True


def checkpoint(
    fn: Callable[..., Any] | None = None,
    *,
    prevent_cse: bool = True,
    policy: Callable[..., Any] | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
) -> Any:
    """The same function, whose inside is computed again in the backward pass instead of saved; as `jax.checkpoint`.

    Only its arguments are kept. Around a loop's body it makes the loop keep its carry and nothing else. Python
    integers, booleans and strings among the arguments reach it as they are.

    Args:
        fn: takes and returns pytrees of arrays.
        prevent_cse: accepted for JAX's sake: what is computed again is never merged with what was computed before.
        policy: one of `ctrlgrad.checkpoint_policies`.
        static_argnums, static_argnames: further arguments that reach `fn` as they are, as for `ctrlgrad.function`.

    >>> import numpy as np, ctrlgrad as cg
    >>> step = cg.checkpoint(lambda x: np.sin(np.exp(x)))
    >>> float(cg.grad(lambda x: cg.fori_loop(0, 3, lambda i, y: step(y), x))(0.5)) != 0
    True
    """
    if fn is None:
        return functools.partial(
            checkpoint,
            prevent_cse=prevent_cse,
            policy=policy,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
        )
    name = getattr(policy, "__name__", None)
    if policy is not None and name not in vars(checkpoint_policies):
        raise UserInputError(
            "checkpoint: the policy is not known",
            source=here(),
            expected="None, checkpoint_policies.nothing_saveable or checkpoint_policies.everything_saveable",
            got=str(name or policy),
            hint="checkpoint a smaller part of the function, or stop_gradient what need not be kept",
        )
    if name == "everything_saveable":
        return fn
    static = StaticArguments("checkpoint", fn, static_argnums, static_argnames)
    function = fn

    @functools.wraps(function)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        source = here()
        flat, treedef = tree.flatten(python_values_static(static.mark(args, kwargs)))
        is_input = [not isinstance(x, str | Static) for x in flat]
        leaves = [x for x, yes in zip(flat, is_input, strict=True) if yes]
        check_leaves("checkpoint: an argument", leaves)
        names = argument_names(function, treedef)

        def call(inputs: list[Any]) -> Any:
            passed = iter(inputs)
            values = [x.value if isinstance(x, Static) else x if isinstance(x, str) else next(passed) for x in flat]
            given, named = tree.unflatten(treedef, values)
            return function(*given, **named)

        def recorded() -> Any:
            hints = [name for name, yes in zip(names, is_input, strict=True) if yes]
            region = trace_rule("checkpoint", call, leaves_of(leaves, hints), leaves)
            return tree.unflatten(region.treedef, emit_call("checkpoint", close([region.finish()]), leaves, source))

        return in_trace(recorded)

    return checkpointed
