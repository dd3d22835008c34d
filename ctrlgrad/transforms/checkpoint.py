"""`checkpoint`: a function whose inside is computed again in the backward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ctrlgrad import tree
from ctrlgrad.advice import explains_calls
from ctrlgrad.errors import UserInputError
from ctrlgrad.frontend.checks import argument_names, check_leaves
from ctrlgrad.frontend.rules import emit_call, trace_rule
from ctrlgrad.frontend.tracer import in_trace, leaves_of
from ctrlgrad.ir import close
from ctrlgrad.ir.attributes import Saveable, Saving
from ctrlgrad.records import record
from ctrlgrad.signature import Static, StaticArguments, python_values_static
from ctrlgrad.source import here


@record
class SavePolicy:
    """Selection of the values inside a checkpoint that its derivative may save: the union of `savings`."""

    savings: tuple[Saving, ...]


def _names_policy(kind: Saveable, names: tuple[str, ...]) -> SavePolicy:
    for name in names:
        check_name("checkpoint_policies", name)
    return SavePolicy((Saving(kind, names),))


def check_name(op: str, name: Any) -> None:
    """Refuse what is no name of a value."""
    if not isinstance(name, str):
        raise UserInputError(f"{op}: the name of a value", source=here(), expected="a string", got=repr(name))


class checkpoint_policies:
    """Policies for `checkpoint(policy=)`: the values inside that may be saved, under JAX's names.

    - `nothing_saveable`: everything is recomputed, as without a policy;
    - `everything_saveable`: every value may be saved; the choice is made as without `checkpoint`;
    - `dots_saveable`, also `checkpoint_dots`: products of matrices and vectors;
    - `dots_with_no_batch_dims_saveable`, also `checkpoint_dots_with_no_batch_dims`: products of which one side at
      least is a matrix or a vector;
    - `save_only_these_names(*names)`: values with these names, given by `ctrlgrad.ad_checkpoint.checkpoint_name`;
    - `save_any_names_but_these(*names)`: values with any other name;
    - `save_anything_except_these_names(*names)`: all values but these;
    - `save_from_both_policies(a, b)`: values that either policy saves.

    Of the values that a policy allows, only those that the derivative uses are saved. JAX's own functions of the plain
    names work too.

    >>> step = cg.checkpoint(lambda w, x: np.tanh(w @ x), policy=cg.checkpoint_policies.dots_saveable)
    >>> cg.grad(lambda w: step(w, np.ones(2)).sum())(np.zeros((2, 2))).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """

    nothing_saveable = SavePolicy(())
    everything_saveable = SavePolicy((Saving(Saveable.VALUES),))
    dots_saveable = checkpoint_dots = SavePolicy((Saving(Saveable.PRODUCTS),))
    dots_with_no_batch_dims_saveable = SavePolicy((Saving(Saveable.UNBATCHED_PRODUCTS),))
    checkpoint_dots_with_no_batch_dims = dots_with_no_batch_dims_saveable

    @staticmethod
    def save_only_these_names(*names_which_can_be_saved: str) -> SavePolicy:
        return _names_policy(Saveable.NAMES, names_which_can_be_saved)

    @staticmethod
    def save_any_names_but_these(*names_not_to_save: str) -> SavePolicy:
        return _names_policy(Saveable.OTHER_NAMES, names_not_to_save)

    @staticmethod
    def save_anything_except_these_names(*names_not_to_save: str) -> SavePolicy:
        return _names_policy(Saveable.VALUES, names_not_to_save)

    @staticmethod
    def save_from_both_policies(policy_1: Any, policy_2: Any) -> SavePolicy:
        return SavePolicy((*_savings(policy_1), *_savings(policy_2)))


def _savings(policy: Any) -> tuple[Saving, ...]:
    """Savings of a policy of ours, or of JAX's function of the same name."""
    if policy is None:
        return ()
    found = policy
    if not isinstance(policy, SavePolicy):
        found = vars(checkpoint_policies).get(getattr(policy, "__name__", ""))
    if not isinstance(found, SavePolicy):
        raise UserInputError(
            "checkpoint: the policy is not known",
            expected="None or one of ctrlgrad.checkpoint_policies",
            got=str(getattr(policy, "__qualname__", policy)),
            hint="name what is to be saved with ctrlgrad.ad_checkpoint.checkpoint_name, and give\n"
            "policy=ctrlgrad.checkpoint_policies.save_only_these_names(...)",
        )
    return found.savings


@explains_calls
def checkpoint(
    fn: Callable[..., Any] | None = None,
    *,
    prevent_cse: bool = True,
    policy: SavePolicy | Callable[..., Any] | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
) -> Any:
    """The same function, whose inside is computed again in the backward pass instead of saved; as `jax.checkpoint`.

    Only its arguments are kept, and what `policy` says. Around a loop's body it makes the loop keep its carry and
    nothing else. Python integers, booleans and strings among the arguments reach it as they are.

    Args:
        fn: takes and returns pytrees of arrays.
        prevent_cse: accepted for JAX's sake: what is computed again is never merged with what was computed before.
        policy: one of `ctrlgrad.checkpoint_policies`. It sees the values of `fn` itself: those inside a loop or a
            branch of `fn` are computed again, unless its body is a checkpoint with a policy of its own.
        static_argnums, static_argnames: further arguments that reach `fn` as they are, as for `ctrlgrad.function`.

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
    savings = _savings(policy)
    if Saving(Saveable.VALUES) in savings:
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
            closed = close([region.finish()])
            return tree.unflatten(region.treedef, emit_call("checkpoint", closed, leaves, source, policy=savings))

        return in_trace(recorded)

    return checkpointed
