"""A network over trees of any shape, by an explicit stack.

A tree is given as in reversed Polish notation: a word is pushed, and the token REDUCE takes the two topmost vectors,
joins them by the network and pushes the result (the shift-reduce form of a recursive network: Bowman et al. 2016, "A
fast unified model for parsing and sentence understanding"). The stack is a `TensorArray`, its height an integer in
the carry. One graph serves trees of every shape and size. Results and gradients are compared with plain Python
recursion over nested tuples, which makes a graph of its own for each tree.

    python examples/tree_network.py
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp

REDUCE = -1
WIDTH = 6
WORDS = 5

Tree = Any  # a word's number, or a pair of trees


def join(params: Any, left: Any, right: Any) -> Any:
    return cnp.tanh(left @ params["left"] + right @ params["right"] + params["bias"])


def by_stack(params: Any, tokens: Any) -> Any:
    """The vector of the tree whose tokens are given."""

    def step(carry: Any) -> Any:
        i, stack, height = carry
        token = tokens[i]

        def shift() -> Any:
            return stack.write(height, params["words"][token]), height + 1

        def reduce() -> Any:
            joined = join(params, stack.read(height - 2), stack.read(height - 1))
            return stack.write(height - 2, joined), height - 1

        stack, height = cg.cond(token == REDUCE, reduce, shift)
        return i + 1, stack, height

    stack = cg.TensorArray("float64", size=tokens.shape[0], element_shape=(WIDTH,), rewritable=True)
    _, stack, _ = cg.while_loop(lambda carry: carry[0] < tokens.shape[0], step, (0, stack, 0))
    return stack.read(0)


def by_recursion(params: Any, tree: Tree) -> Any:
    if isinstance(tree, int):
        return params["words"][tree]
    left, right = tree
    return join(params, by_recursion(params, left), by_recursion(params, right))


def tokens_of(tree: Tree) -> list[int]:
    return [tree] if isinstance(tree, int) else [*tokens_of(tree[0]), *tokens_of(tree[1]), REDUCE]


def random_tree(rng: np.random.Generator, leaves: int) -> Tree:
    if leaves == 1:
        return int(rng.integers(WORDS))
    left = int(rng.integers(1, leaves))
    return random_tree(rng, left), random_tree(rng, leaves - left)


def main() -> int:
    rng = np.random.default_rng(0)
    params = {
        "words": rng.standard_normal((WORDS, WIDTH)),
        "left": rng.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH),
        "right": rng.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH),
        "bias": rng.standard_normal(WIDTH),
    }
    weights = rng.standard_normal(WIDTH)
    with_stack = cg.function(cg.value_and_grad(lambda params, tokens: weights @ by_stack(params, tokens)))
    errors = []
    for leaves in (1, 2, 3, 5, 8, 13):
        tree = random_tree(rng, leaves)
        value, gradient = with_stack(params, np.array(tokens_of(tree)))
        recursive = cg.value_and_grad(lambda params, tree=tree: weights @ by_recursion(params, tree))
        exact, exact_gradient = recursive(params)
        found = [abs(value - exact), *(np.max(np.abs(gradient[name] - exact_gradient[name])) for name in params)]
        shown = str(tree) if leaves < 6 else f"{leaves} words"
        print(f"{shown:28} value {value:9.6f}   largest difference from recursion {np.max(found):.1e}")
        errors += found
    print(f"the program with the stack was traced {with_stack.traces} times for 6 trees")
    if not (np.max(errors) < 1e-12 and with_stack.traces <= 2):
        print("stack and recursion disagree", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
