"""`checkpoint`: a function whose inside is computed again in the backward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ctrlgrad import tree
from ctrlgrad.frontend.arguments import argument_names
from ctrlgrad.frontend.checks import check_leaves
from ctrlgrad.frontend.rules import emit_call, trace_rule
from ctrlgrad.frontend.tracer import in_trace, leaves_of
from ctrlgrad.ir import close
from ctrlgrad.source import here


def checkpoint(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose inside is computed again in the backward pass instead of saved; as `jax.checkpoint`.

    Only its arguments are kept. Around a loop's body it makes the loop keep its carry and nothing else.

    >>> import numpy as np, ctrlgrad as cg
    >>> step = cg.checkpoint(lambda x: np.sin(np.exp(x)))
    >>> float(cg.grad(lambda x: cg.fori_loop(0, 3, lambda i, y: step(y), x))(0.5)) != 0
    True
    """

    @functools.wraps(fn)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        source = here()
        leaves, treedef = tree.flatten((args, kwargs))
        check_leaves("checkpoint: an argument", leaves)

        def call(inputs: list[Any]) -> Any:
            given, named = tree.unflatten(treedef, inputs)
            return fn(*given, **named)

        def recorded() -> Any:
            region = trace_rule("checkpoint", call, leaves_of(leaves, argument_names(fn, treedef)))
            return tree.unflatten(region.treedef, emit_call("checkpoint", close([region.finish()]), leaves, source))

        return in_trace(recorded)

    return checkpointed
