"""The functions of GradBench's modules in JAX, as fast as it has them: over arrays where that is better than a loop.

They take what the modules here prepare. JAX reverses no loop of unknown length, so `particle` and `saddle` have forward
mode alone outside.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.gradbench.__main__ import module_of
from benchmarks.gradbench.descent import FIRST_STEP, SMALL, STEPS_BEFORE_DOUBLING
from benchmarks.gradbench.inputs import example
from benchmarks.gradbench.particle import STEP
from benchmarks.program import Program

jax.config.update("jax_enable_x64", True)


def lse(x: Any) -> Any:
    largest = jnp.max(x)
    return jnp.log(jnp.sum(jnp.exp(x - largest))) + largest


def llsq(n: int) -> Callable[[Any], Any]:
    def half_squares(x: Any) -> Any:
        t = -1.0 + 2.0 * jnp.arange(n) / (n - 1.0)
        values = lax.scan(lambda y, a: (y * t + a, None), jnp.zeros(n), x[::-1])[0]
        return 0.5 * jnp.sum((jnp.sign(t) - values) ** 2)

    return half_squares


def ode(steps: int) -> Callable[[Any], Any]:
    def solution(x: Any) -> Any:
        h = 2.0 / steps

        def slope(y: Any) -> Any:
            return jnp.concatenate([x[:1], x[1:] * y[:-1]])

        def step(_: Any, y: Any) -> Any:
            k1 = slope(y)
            k2 = slope(y + h / 2.0 * k1)
            k3 = slope(y + h / 2.0 * k2)
            k4 = slope(y + h * k3)
            return y + h / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)

        return lax.fori_loop(0, steps, step, jnp.zeros_like(x))

    return solution


def lstm(main: Any, extra: Any, state: Any, sequence: Any) -> Any:
    layers, b = state.shape[0] // 2, state.shape[1]

    def step(carry: Any, given: Any) -> Any:
        (hs, cs), (x, following) = carry, given
        x = x * extra[0]
        new: list[tuple[Any, Any]] = []
        for k in range(layers):
            w, bias = main[2 * k].reshape(4, b), main[2 * k + 1].reshape(4, b)
            forget, outgate = jax.nn.sigmoid(x * w[0] + bias[0]), jax.nn.sigmoid(x * w[2] + bias[2])
            ingate, change = jax.nn.sigmoid(hs[k] * w[1] + bias[1]), jnp.tanh(hs[k] * w[3] + bias[3])
            c = cs[k] * forget + ingate * change
            x = outgate * jnp.tanh(c)
            new.append((x, c))
        y = x * extra[1] + extra[2]
        y = y - jnp.log(jnp.sum(jnp.exp(y)) + 2.0)
        return tuple(zip(*new, strict=True)), jnp.sum(following * y)

    start = (tuple(state[::2]), tuple(state[1::2]))
    return -jnp.mean(lax.scan(step, start, (sequence[:-1], sequence[1:]))[1]) / b


def gmm(rows: np.ndarray, columns: np.ndarray) -> Callable[..., Any]:
    def log_posterior(parameters: Any, x: Any, fixed: Any) -> Any:
        alpha, mu, q, below = (parameters[name] for name in ("alpha", "mu", "q", "l"))
        (k, d), n = mu.shape, x.shape[0]
        lower = jnp.zeros((k, d, d)).at[:, rows, columns].set(below)
        centred = x[:, None, :] - mu
        whitened = jnp.exp(q) * centred + jnp.einsum("kij,nkj->nki", lower, centred)
        scores = alpha + jnp.sum(q, axis=1) - 0.5 * jnp.sum(whitened**2, axis=2)
        norm = jnp.sum(jnp.exp(q) ** 2) + jnp.sum(below**2)
        likelihood = jnp.sum(jax.nn.logsumexp(scores, axis=1)) - n * jax.nn.logsumexp(alpha)
        return likelihood - 0.5 * n * d * math.log(2.0 * math.pi) - 0.5 * fixed[0] ** 2 * norm + fixed[1] * jnp.sum(q)

    return log_posterior


def kmeans(points: Any, centroids: Any) -> Any:
    distances = jnp.sum(points**2, 1)[:, None] + jnp.sum(centroids**2, 1) - 2.0 * points @ centroids.T
    return jnp.sum(jnp.min(distances, axis=1))


def kmeans_direction(points: Any, centroids: Any) -> Any:
    slope, curvature = jax.jvp(lambda c: jax.grad(kmeans, 1)(points, c), (centroids,), (jnp.ones_like(centroids),))
    return slope / curvature


def det(a: Any, columns: Any) -> Any:
    n = a.shape[0]

    def minor(row: int, after: Any) -> Any:
        if row == n - 1:
            return a[row, after[n]]

        def add(_: Any, carry: Any) -> Any:
            total, sign, before, column = carry
            inner = minor(row + 1, after.at[before].set(after[column]))
            return total + sign * a[row, column] * inner, -sign, column, after[column]

        return lax.fori_loop(0, n - row, add, (0.0, 1.0, n, after[n]))[0]

    return minor(0, columns)


def reprojection_error(camera: Any, point: Any, weight: Any, feature: Any) -> Any:
    rotation, x = camera[:3], point - camera[3:6]
    square = jnp.sum(rotation * rotation)
    safe = jnp.where(square > 0.0, square, 1.0)
    angle = jnp.sqrt(safe)
    axis = rotation / angle
    turned = x * jnp.cos(angle) + jnp.cross(axis, x) * jnp.sin(angle) + axis * jnp.sum(axis * x) * (1 - jnp.cos(angle))
    seen = jnp.where(square > 0.0, turned, x + jnp.cross(rotation, x))
    flat = seen[:2] / seen[2]
    square = jnp.sum(flat * flat)
    distorted = flat * (1.0 + camera[9] * square + camera[10] * square * square)
    return weight * (distorted * camera[6] + camera[7:9] - feature)


def ba(cameras: Any, points: Any, weights: Any, observed: Any, features: Any) -> Any:
    found = jax.vmap(reprojection_error)(cameras[observed[:, 0]], points[observed[:, 1]], weights, features)
    return found, 1.0 - weights * weights


def ba_derivatives(cameras: Any, points: Any, weights: Any, observed: Any, features: Any) -> Any:
    one = jax.vmap(jax.jacrev(reprojection_error, argnums=(0, 1, 2)))
    by_each = one(cameras[observed[:, 0]], points[observed[:, 1]], weights, features)
    return jnp.concatenate([by_each[0], by_each[1], by_each[2][:, :, None]], axis=2), -2.0 * weights


def _turns(angles: Any) -> Any:
    (sx, sz, sy), (cx, cz, cy) = jnp.sin(angles).T, jnp.cos(angles).T
    rows = [
        [cz * cy, cz * sy * sx - sz * cx, cz * sy * cx + sz * sx],
        [sz * cy, sz * sy * sx + cz * cx, sz * sy * cx - cz * sx],
        [-sy, cy * sx, cy * cx],
    ]
    matrices = jnp.moveaxis(jnp.array(rows), 2, 0)
    return jnp.zeros((len(angles), 4, 4)).at[:, :3, :3].set(matrices).at[:, 3, 3].set(1.0)


def ht(parents: np.ndarray) -> Callable[..., Any]:
    def error(theta: Any, us: Any, data: Any) -> Any:
        model = data["model"]
        fingers = theta[6:].reshape(5, 4)
        angles = jnp.zeros((5, 4, 3)).at[:, 1, :2].set(fingers[:, :2]).at[:, 2, 0].set(fingers[:, 2])
        angles = angles.at[:, 3, 0].set(fingers[:, 3]).reshape(20, 3)
        relatives = model["base_relatives"] @ _turns(jnp.zeros((22, 3)).at[1:21].set(angles))
        absolutes: list[Any] = []
        for k, parent in enumerate(parents):
            absolutes.append(relatives[k] if parent < 0 else absolutes[parent] @ relatives[k])
        transforms = jnp.stack(absolutes) @ model["inverse_base_absolutes"]
        moved = jnp.einsum("kij,vj,vk->vi", transforms[:, :3], model["base_positions"], model["weights"])
        size = jnp.sqrt(jnp.sum(theta[:3] ** 2))
        x, y, z = theta[:3] / size
        cross = jnp.array([[0.0 * x, -z, y], [z, 0.0 * x, -x], [-y, x, 0.0 * x]])
        rotation = jnp.eye(3) + jnp.sin(size) * cross + (1.0 - jnp.cos(size)) * cross @ cross
        placed = moved * model["mirror"] @ rotation.T + theta[3:6]
        corners = placed[model["triangles"][data["correspondences"]]]
        u, v = us[:, :1], us[:, 1:]
        return data["points"] - (u * corners[:, 0] + v * corners[:, 1] + (1.0 - u - v) * corners[:, 2])

    return error


def ht_jacobian(error: Callable[..., Any]) -> Callable[..., Any]:
    def jacobian(theta: Any, us: Any, data: Any) -> Any:
        by_theta = jax.jacfwd(error)(theta, us, data).reshape(-1, 26)
        own = [
            jax.jvp(lambda given: error(theta, given, data), (us,), (jnp.zeros_like(us).at[:, k].set(1.0),))[1]
            for k in range(2)
        ]
        return jnp.concatenate([jnp.stack(own, axis=2).reshape(-1, 2), by_theta], axis=1)

    return jacobian


def minimiser(f: Callable[[Any], Any], gradient: Callable[[Any], Any], start: Any) -> Any:
    """The gradient descent of `descent`, with one `where` for each of its ways."""

    def length(v: Any) -> Any:
        return jnp.sqrt(jnp.sum(lax.stop_gradient(v) ** 2))

    def proceed(state: Any) -> Any:
        x, value, slope, size, taken, _ = state
        further = x - size * slope
        is_flat, doubles = length(slope) <= SMALL, taken == STEPS_BEFORE_DOUBLING
        stands = ~is_flat & ~doubles & (length(x - further) <= SMALL)
        done = is_flat | stands
        reached = f(further)
        moves, halves = ~done & ~doubles & (reached < value), ~done & ~doubles & ~(reached < value)
        size = jnp.where(halves, 0.5 * size, jnp.where(doubles & ~done, 2.0 * size, size))
        slope = lax.cond(moves, lambda: gradient(further), lambda: slope)
        taken = jnp.where(moves, taken + 1, jnp.where(done, taken, 0))
        return jnp.where(moves, further, x), jnp.where(moves, reached, value), slope, size, taken, done

    start = jnp.asarray(start)
    state = (start, f(start), gradient(start), jnp.asarray(FIRST_STEP), jnp.asarray(0), jnp.asarray(False))
    return lax.while_loop(lambda state: ~state[5], proceed, state)[0]


def _derivative(mode: str, f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return jax.grad(f) if mode == "r" else jax.jacfwd(f)


def particle(inner: str) -> Callable[[Any], Any]:
    def miss(w: Any) -> Any:
        def distance(x: Any, b: Any) -> Any:
            return jnp.sqrt((x[0] - 10.0) ** 2 + (x[1] - b) ** 2)

        slope = _derivative(inner, lambda x: 1.0 / distance(x, 10.0 - w[0]) + 1.0 / distance(x, 0.0))

        def move(carry: Any) -> Any:
            x, _, velocity = carry
            return x + STEP * velocity, velocity, velocity - STEP * slope(x)

        velocity = jnp.array([0.75, 0.0])
        start = (jnp.array([0.0, 8.0]), velocity, velocity)
        x, velocity, _ = lax.while_loop(lambda carry: carry[0][1] > 0.0, move, start)
        return (x - x[1] / velocity[1] * velocity)[0] ** 2

    return lambda w: minimiser(miss, jax.jacfwd(miss), w)[0]


def saddle(inner: str) -> Callable[[Any], Any]:
    def height(x: Any, y: Any) -> Any:
        return jnp.sum(x * x) - jnp.sum(y * y)

    def highest(mode: str, x: Any, start: Any) -> Any:
        return minimiser(lambda y: -height(x, y), _derivative(mode, lambda y: -height(x, y)), start)

    def point(start: Any) -> Any:
        def ridge(x: Any) -> Any:
            return height(x, highest(inner, x, start))

        x = minimiser(ridge, jax.jacfwd(ridge), start)
        return jnp.concatenate([x, highest("f", x, start)])

    return point


# From what a module prepares: the function, and the arguments that it takes.
FUNCTIONS: dict[tuple[str, str], Callable[..., tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    ("lse", "primal"): lambda x: (lse, (x,)),
    ("lse", "gradient"): lambda x: (jax.grad(lse), (x,)),
    ("llsq", "primal"): lambda x, n: (llsq(int(n)), (x,)),
    ("llsq", "gradient"): lambda x, n: (jax.grad(llsq(int(n))), (x,)),
    ("ode", "primal"): lambda x, s: (ode(int(s)), (x,)),
    ("ode", "gradient"): lambda x, s: (jax.grad(lambda x: ode(int(s))(x)[-1]), (x,)),
    ("lstm", "objective"): lambda *given: (lstm, given),
    ("lstm", "jacobian"): lambda *given: (jax.grad(lstm, (0, 1)), given),
    ("gmm", "objective"): lambda p, x, rows, columns, fixed, constant: (
        lambda p, x, fixed: gmm(rows, columns)(p, x, fixed) + constant,
        (p, x, fixed),
    ),
    ("gmm", "jacobian"): lambda p, x, rows, columns, fixed, _: (jax.grad(gmm(rows, columns)), (p, x, fixed)),
    ("kmeans", "cost"): lambda *given: (kmeans, given),
    ("kmeans", "dir"): lambda *given: (kmeans_direction, given),
    ("det", "primal"): lambda *given: (det, given),
    ("det", "gradient"): lambda *given: (jax.grad(det), given),
    ("ba", "objective"): lambda *given: (ba, given),
    ("ba", "jacobian"): lambda *given: (ba_derivatives, given),
    ("ht", "objective"): lambda theta, us, data: (ht(data["model"]["parents"]), (theta, us, data)),
    ("ht", "jacobian"): lambda theta, us, data: (ht_jacobian(ht(data["model"]["parents"])), (theta, us, data)),
    ("particle", "ff"): lambda w: (particle("f"), (w,)),
    ("particle", "fr"): lambda w: (particle("r"), (w,)),
    ("saddle", "ff"): lambda start: (saddle("f"), (start,)),
    ("saddle", "fr"): lambda start: (saddle("r"), (start,)),
}


def evaluation(module: str, function: str, tiny: bool = False) -> Program:
    """One function of a module."""
    prepared = module_of(module).functions[function].prepare(example(module, tiny))
    found, given = FUNCTIONS[module, function](*prepared)
    arguments, compiled = jax.tree.map(jnp.asarray, given), jax.jit(found)
    return Program(
        lambda: jax.block_until_ready(compiled(*arguments)),
        lambda result: {"numbers": np.concatenate([np.ravel(x) for x in jax.tree.leaves(result)])},
    )
