"""Deep Q-learning with the whole of it in one graph: no Python runs between two steps.

Mnih et al. 2015, "Human-level control through deep reinforcement learning". An agent balances a pole on a cart. In each
step it acts, by chance or by its network; the cart moves; what happened goes into a replay memory; the network learns
from a batch of the memory; now and then it is copied to the target network. Here all of that is the body of one
`while_loop`: the memory is a `TensorArray`, written as a ring; exploration, learning, the target's update and the start
of an episode are `cond`s; the gradient is taken inside the loop. (Yu et al. 2018, "Dynamic control flow in large-scale
machine learning", made the same of TensorFlow's loops.)

Random numbers come from a key that the loop carries. So the same parts driven from Python, one call each per step, see
the same chances, and both runs must give the same rewards. The agent must learn, too: a pole that is up for all of an
episode's steps is the best there is.

    python examples/deep_q_learning.py
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp

Params = dict[str, Any]
STATE, ACTIONS = 4, 2
# A row of the memory: state, action, reward, whether the pole fell, next state.
ROW = 2 * STATE + 3


@dataclass(frozen=True)
class Task:
    """The sizes and rates of a run."""

    steps: int = 6000
    hidden: int = 32
    batch: int = 32
    capacity: int = 2000
    # Steps before learning starts, and between two copies to the target network.
    warmup: int = 200
    copy_every: int = 200
    # Exploration falls from always to `least` in so many steps.
    explore: int = 2000
    least: float = 0.02
    rate: float = 1e-3
    discount: float = 0.98
    longest_episode: int = 200


def chances(task: Task, key: Any) -> tuple[Any, Any]:
    """The key of the next step, and this step's numbers in [0, 1): to act by, to start from, to choose a batch by."""
    key, now = cg.random.split(key)
    return key, cg.random.uniform(now, (2 + STATE + task.batch,))


# The cart and its pole: Barto, Sutton and Anderson 1983, with the numbers that are common today.


def first_state(numbers: Any) -> Any:
    """Position, speed, angle and its speed, all near zero, from the numbers of a step."""
    return 0.1 * numbers[2 : 2 + STATE] - 0.05


def move(state: Any, action: Any) -> Any:
    """The state a fiftieth of a second later."""
    _, speed, angle, turn = (state[i] for i in range(STATE))
    force = cnp.where(action, 10.0, -10.0)
    sine, cosine = cnp.sin(angle), cnp.cos(angle)
    push = (force + 0.05 * turn * turn * sine) / 1.1
    angular = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * cosine * cosine / 1.1))
    linear = push - 0.05 * angular * cosine / 1.1
    return state + 0.02 * cnp.stack([speed, linear, turn, angular])


def has_fallen(state: Any) -> Any:
    """True if the cart has left its track or the pole leans by more than twelve degrees."""
    return (cnp.abs(state[0]) > 2.4) | (cnp.abs(state[2]) > 12 * np.pi / 180)


# The agent.


def first_params(seed: int, hidden: int) -> Params:
    rng = np.random.default_rng(seed)
    sizes = [(STATE, hidden), (hidden, hidden), (hidden, ACTIONS)]
    made = {f"w{i}": rng.standard_normal(size) * np.sqrt(2 / size[0]) for i, size in enumerate(sizes)}
    return made | {f"b{i}": np.zeros(size[1]) for i, size in enumerate(sizes)}


def values(params: Params, states: Any) -> Any:
    """Return the value of each action, `[batch, ACTIONS]`, for states `[batch, STATE]`."""
    h = cnp.maximum(states @ params["w0"] + params["b0"], 0.0)
    h = cnp.maximum(h @ params["w1"] + params["b1"], 0.0)
    return h @ params["w2"] + params["b2"]


def loss(params: Params, target: Params, rows: Any, discount: float) -> Any:
    """Huber's loss of the Bellman equation's two sides; the next action is chosen by the network that learns.

    van Hasselt et al. 2016, "Deep reinforcement learning with double Q-learning".
    """
    state, following = rows[:, :STATE], rows[:, STATE + 3 :]
    action, reward, fell = (rows[:, STATE + i] for i in range(3))
    later, worth = values(params, following), values(target, following)
    best = cnp.where(later[:, 1] > later[:, 0], worth[:, 1], worth[:, 0])
    goal = cg.stop_gradient(reward + discount * (1.0 - fell) * best)
    now = values(params, state)
    gap = cnp.abs(cnp.where(action == 1.0, now[:, 1], now[:, 0]) - goal)
    return cnp.mean(cnp.where(gap < 1.0, 0.5 * gap * gap, gap - 0.5))


def act(task: Task, params: Params, step: Any, numbers: Any, state: Any) -> Any:
    """0 or 1, by chance or by the network."""
    epsilon = cnp.maximum(task.least, 1.0 - step / task.explore)
    return cg.cond(numbers[0] < epsilon, lambda: numbers[1] < 0.5, lambda: greedy(params, state))


def greedy(params: Params, state: Any) -> Any:
    """Return the action with the greatest value, as a bool."""
    found = values(params, cnp.reshape(state, (1, STATE)))
    return found[0, 1] > found[0, 0]


def advance(task: Task, numbers: Any, state: Any, age: Any, action: Any) -> tuple[Any, Any, Any]:
    """Move the cart: the state to act on next, the age of its episode, and the row to remember."""
    following = move(state, action)
    fell = has_fallen(following)
    outcome = cnp.stack([cnp.astype(x, np.float64) for x in (action, ~fell, fell)])
    row = cnp.concat([state, outcome, following])
    over = fell | (age + 1 >= task.longest_episode)
    state, age = cg.cond(over, lambda: (first_state(numbers), 0), lambda: (following, age + 1))
    return state, age, row


def batch(task: Task, step: Any, numbers: Any) -> Any:
    """Draw the slots of the memory to learn from, once `step` + 1 rows have been written."""
    filled = cnp.minimum(step + 1, task.capacity)
    return cnp.astype(numbers[2 + STATE :] * filled, np.int64)


def learn(task: Task, params: Params, target: Params, moments: Any, rows: Any) -> tuple[Params, Any]:
    """One step of Adam."""
    gradient = cg.grad(loss)(params, target, rows, task.discount)
    count, mean, square = moments
    count = count + 1.0
    mean = {n: 0.9 * mean[n] + 0.1 * gradient[n] for n in params}
    square = {n: 0.999 * square[n] + 0.001 * gradient[n] * gradient[n] for n in params}
    rate = task.rate * cnp.sqrt(1.0 - 0.999**count) / (1.0 - 0.9**count)
    return {n: params[n] - rate * mean[n] / (cnp.sqrt(square[n]) + 1e-8) for n in params}, (count, mean, square)


def first_moments(params: Params) -> Any:
    zeros = {n: np.zeros_like(p) for n, p in params.items()}
    return np.float64(0.0), zeros, zeros


# The run, in the graph and driven from Python.


def in_graph(task: Task, engine: str = "auto") -> Callable[[Any, Params], tuple[Any, Params]]:
    """A function of a key and the first parameters: the reward of every step, and the last parameters."""

    def run(key: Any, params: Params) -> tuple[Any, Params]:
        def body(carry: Any) -> Any:
            step, key, params, target, moments, memory, rewards, state, age = carry
            key, numbers = chances(task, key)
            action = act(task, params, step, numbers, state)
            state, age, row = advance(task, numbers, state, age, action)
            memory = memory.write(step % task.capacity, row)
            rewards = rewards.write(step, row[STATE + 1])
            params, moments = cg.cond(
                step >= task.warmup,
                lambda: learn(task, params, target, moments, memory.gather(batch(task, step, numbers))),
                lambda: (params, moments),
            )
            target = cg.cond(step % task.copy_every == 0, lambda: params, lambda: target)
            return step + 1, key, params, target, moments, memory, rewards, state, age

        key, numbers = chances(task, key)
        memory = cg.TensorArray(np.float64, task.capacity, (ROW,), rewritable=True)
        rewards = cg.TensorArray(np.float64, task.steps, ())
        start = (0, key, params, params, first_moments(params), memory, rewards, first_state(numbers), 0)
        last = cg.while_loop(lambda carry: carry[0] < task.steps, body, start)
        return last[6].stack(), last[2]

    return cg.function(run, engine=engine)


def from_python(task: Task, engine: str = "auto") -> Callable[[Any, Params], tuple[Any, Params]]:
    """The same, each part a function of its own that Python calls, with the memory an array of Python's."""

    def part(fn: Callable[..., Any]) -> Callable[..., Any]:
        return cg.function(functools.partial(fn, task), engine=engine)

    chances_now, act_now, advance_now, batch_now, learn_now = map(part, (chances, act, advance, batch, learn))

    def run(key: Any, params: Params) -> tuple[Any, Params]:
        memory, rewards = np.zeros((task.capacity, ROW)), np.zeros(task.steps)
        target, moments = params, first_moments(params)
        key, numbers = chances_now(key)
        state, age = first_state(numbers), np.int64(0)
        for number in range(task.steps):
            step = np.int64(number)
            key, numbers = chances_now(key)
            action = act_now(params, step, numbers, state)
            state, age, row = advance_now(numbers, state, age, action)
            memory[number % task.capacity] = row
            rewards[number] = row[STATE + 1]
            if number >= task.warmup:
                params, moments = learn_now(params, target, moments, memory[batch_now(step, numbers)])
            if number % task.copy_every == 0:
                target = params
        return rewards, params

    return run


def steps_up(task: Task, params: Params, seeds: range) -> list[int]:
    """Count the steps until the pole falls when the network alone decides, from several starts."""

    @cg.function
    def play(key: Any) -> Any:
        def body(carry: Any) -> Any:
            state, steps = carry
            return move(state, greedy(params, state)), steps + 1

        start = (first_state(chances(task, key)[1]), 0)
        return cg.while_loop(lambda c: ~has_fallen(c[0]) & (c[1] < task.longest_episode), body, start)[1]

    return [int(play(cg.random.key(seed))) for seed in seeds]


def main() -> int:
    task, key = Task(), cg.random.key(7)
    params = first_params(0, task.hidden)
    rewards, learned = in_graph(task)(key, params)
    driven, also_learned = from_python(task)(key, params)
    difference = max(float(np.max(np.abs(learned[n] - also_learned[n]))) for n in params)
    falls = [int(np.sum(part == 0.0)) for part in np.split(rewards, 6)]
    before, after = (steps_up(task, p, range(100, 120)) for p in (params, learned))
    print(f"falls in each sixth of {task.steps} steps: {falls}")
    print(f"steps up, of {task.longest_episode}: {np.mean(before):.0f} before, {np.mean(after):.0f} after")
    print(f"in the graph and from Python: the same rewards {np.array_equal(rewards, driven)}", end=", ")
    print(f"parameters differ by {difference:.1e} at most")
    if not (np.array_equal(rewards, driven) and np.mean(after) > 0.75 * task.longest_episode):
        print("the rewards differ, or the agent has not learned", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
