"""Hamiltonian Monte Carlo: samples of a distribution whose density is known up to a factor.

Duane, Kennedy, Pendleton and Roweth 1987, "Hybrid Monte Carlo", with trajectories of random length. A transition gives
the point a random momentum, follows the equations of motion by leapfrog steps, and accepts the end by the change of
the energy. The force is the gradient of the log-density, taken by `grad` inside of the inner loop, whose number of
steps is drawn anew each time. `vmap` runs many chains; in each iteration every one has a trajectory of its own length.

The program is a pure function of its arguments: the random numbers are drawn by NumPy beforehand. Mean and covariance
of the samples are compared with those of the target, in units of their standard error over independent chains.

    python examples/hamiltonian_monte_carlo.py
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp

MEAN = np.array([1.0, -2.0])
COVARIANCE = np.array([[1.0, 0.9], [0.9, 1.5]])
PRECISION = np.linalg.inv(COVARIANCE)

CHAINS, WARM_UP, SAMPLES = 100, 20, 100
STEP, LONGEST = 0.4, 8


def log_density(x: Any) -> Any:
    """Of a normal distribution, but for a constant."""
    return -0.5 * (x - MEAN) @ PRECISION @ (x - MEAN)


def transition(x: Any, noise: Any) -> tuple[Any, tuple[Any, Any]]:
    """The next point, itself and whether it is new."""
    force = cg.grad(log_density)
    momentum, steps, threshold = noise

    def leapfrog(carry: Any) -> Any:
        i, x, p = carry
        p = p + STEP / 2 * force(x)
        x = x + STEP * p
        return i + 1, x, p + STEP / 2 * force(x)

    _, end, p = cg.while_loop(lambda carry: carry[0] < steps, leapfrog, (0, x, momentum))
    energy_gained = log_density(x) - 0.5 * momentum @ momentum - log_density(end) + 0.5 * p @ p
    accepted = threshold < cnp.exp(-energy_gained)
    after = cg.cond(accepted, lambda: end, lambda: x)
    return after, (after, accepted)


def draw(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw a momentum, a number of steps and a threshold for each transition of each chain."""
    size = (CHAINS, count)
    return rng.standard_normal((*size, 2)), rng.integers(1, LONGEST + 1, size), rng.uniform(size=size)


def standardised(by_chain: np.ndarray, expected: Any) -> np.ndarray:
    """Distance of the mean over chains from the expected value, in standard errors."""
    error = by_chain.std(axis=0, ddof=1) / np.sqrt(len(by_chain))
    return (by_chain.mean(axis=0) - expected) / error


def main() -> int:
    rng = np.random.default_rng(1)
    starts = MEAN + 3.0 * rng.standard_normal((CHAINS, 2))
    sample = cg.function(cg.vmap(lambda start, noise: cg.scan(transition, start, noise)[1]))
    points, accepted = sample(starts, draw(rng, WARM_UP + SAMPLES))
    points = points[:, WARM_UP:]
    centred = points - MEAN
    means, covariances = points.mean(axis=1), np.einsum("cti,ctj->cij", centred, centred) / SAMPLES
    print(f"{CHAINS} chains of {SAMPLES} samples, {np.mean(accepted):.0%} accepted")
    print(f"mean       {means.mean(axis=0).round(3)}, of the target {MEAN}")
    print(f"covariance {covariances.mean(axis=0).round(3).tolist()}, of the target {COVARIANCE.tolist()}")
    off = np.concatenate([standardised(means, MEAN), standardised(covariances, COVARIANCE).ravel()])
    width = means.std(axis=0, ddof=1) / np.sqrt(CHAINS)
    print(f"standard error of the mean {width.round(4)}; largest deviation {np.max(np.abs(off)):.1f} standard errors")
    if not (np.max(np.abs(off)) < 4.0 and np.max(width) < 0.02 and 0.8 < np.mean(accepted) < 1.0):
        print("the samples are not those of the target", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
