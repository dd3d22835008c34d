"""Bundle adjustment: how far cameras see points from where they were observed, and the sparse Jacobian of that.

A loop over the observations computes two errors each, and with `jacrev` in the loop their derivatives by the 11 numbers
of a camera, the 3 of a point and the weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from benchmarks.gradbench.evaluation import Evaluation, Module

CAMERA, POINT = 11, 3
# How many entries of the Jacobian's lists an answer has, besides the last: those of one observation.
SHOWN = 2 * (CAMERA + POINT + 1)


def rotated(rotation: Any, x: Any) -> Any:
    """By Rodrigues' formula; to first order where there is no rotation."""
    square = cnp.sum(rotation * rotation)

    def turn() -> Any:
        angle = cnp.sqrt(square)
        axis = rotation / angle
        along = cnp.sum(axis * x) * (1.0 - cnp.cos(angle))
        return x * cnp.cos(angle) + cnp.cross(axis, x) * cnp.sin(angle) + axis * along

    return cg.cond(square != 0.0, turn, lambda: x + cnp.cross(rotation, x))


def reprojection_error(camera: Any, point: Any, weight: Any, feature: Any) -> Any:
    """`camera`: rotation (3), centre (3), focal length, principal point (2), radial distortion (2)."""
    seen = rotated(camera[:3], point - camera[3:6])
    flat = seen[:2] / seen[2]
    square = cnp.sum(flat * flat)
    distorted = flat * (1.0 + camera[9] * square + camera[10] * square * square)
    return weight * (distorted * camera[6] + camera[7:9] - feature)


def errors(cameras: Any, points: Any, weights: Any, observed: Any, features: Any) -> Any:
    def one(_: Any, given: Any) -> Any:
        pair, weight, feature = given
        return None, reprojection_error(cameras[pair[0]], points[pair[1]], weight, feature)

    return cg.scan(one, None, (observed, weights, features))[1], 1.0 - weights * weights


def derivatives(cameras: Any, points: Any, weights: Any, observed: Any, features: Any) -> Any:
    """The blocks of the Jacobian: (observations, 2, 15), and the weights' own."""

    def one(_: Any, given: Any) -> Any:
        pair, weight, feature = given
        by_each = cg.jacrev(reprojection_error, argnums=(0, 1, 2))(cameras[pair[0]], points[pair[1]], weight, feature)
        by_camera, by_point, by_weight = by_each
        return None, cnp.concat([by_camera, by_point, by_weight[:, None]], axis=1)

    return cg.scan(one, None, (observed, weights, features))[1], -2.0 * weights


@dataclass(frozen=True)
class Sparse:
    """A matrix in compressed rows."""

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray


MATRIX = cg.TensorSpec((None, 2))
SIGNATURE = (
    cg.TensorSpec((None, CAMERA)),
    cg.TensorSpec((None, POINT)),
    cg.TensorSpec((None,)),
    cg.TensorSpec((None, 2), "int64"),
    MATRIX,
)
ERRORS, DERIVATIVES = cg.function(errors, signature=SIGNATURE), cg.function(derivatives, signature=SIGNATURE)


def jacobian(cameras: Any, points: Any, weights: Any, observed: Any, features: Any) -> Sparse:
    """The rows of the reprojection errors, then those of the weights' errors."""
    blocks, own = DERIVATIVES(cameras, points, weights, observed, features)
    p = len(weights)
    width = blocks.shape[2]
    first_point = CAMERA * len(cameras)
    first_weight = first_point + POINT * len(points)
    of_weights = first_weight + np.arange(p)
    of_camera = CAMERA * observed[:, :1] + np.arange(CAMERA)
    of_point = first_point + POINT * observed[:, 1:] + np.arange(POINT)
    columns = np.concatenate([of_camera, of_point, of_weights[:, None]], axis=1)
    rows = np.append(np.arange(2 * p + 1) * width, 2 * p * width + np.arange(1, p + 1))
    both = np.repeat(columns, 2, axis=0)
    return Sparse(rows, np.append(both.ravel(), of_weights), np.append(blocks.ravel(), own))


def prepare(given: Mapping[str, Any]) -> tuple[Any, ...]:
    n, m, p = given["n"], given["m"], given["p"]
    numbers = np.arange(p)
    return (
        np.tile(np.array(given["cam"], np.float64), (n, 1)),
        np.tile(np.array(given["x"], np.float64), (m, 1)),
        np.full(p, given["w"], np.float64),
        np.stack([numbers % n, numbers % m], axis=1),
        np.tile(np.array(given["feat"], np.float64), (p, 1)),
    )


def errors_as_json(found: Any) -> dict[str, Any]:
    of_features, of_weights = found
    return {
        "reproj_error": {"elements": of_features[0].tolist(), "repeated": len(of_features)},
        "w_err": {"element": float(of_weights[0]), "repeated": len(of_weights)},
    }


def jacobian_as_json(found: Sparse) -> dict[str, Any]:
    lists = {"rows": found.rows, "cols": found.columns, "vals": found.values}
    return {name: [*x[:SHOWN].tolist(), x[-1].item()] for name, x in lists.items()}


def numbers_of_errors(answer: Mapping[str, Any]) -> np.ndarray:
    of_features, of_weights = answer["reproj_error"], answer["w_err"]
    return np.append(
        np.tile(of_features["elements"], of_features["repeated"]),
        np.full(of_weights["repeated"], of_weights["element"]),
    )


def numbers_of_jacobian(answer: Mapping[str, Any]) -> np.ndarray:
    """The values: every observation has those of the first one. The last of `rows` says how many there are."""
    observations = answer["rows"][-1] // (SHOWN + 1)
    return np.append(np.tile(answer["vals"][:-1], observations), np.full(observations, answer["vals"][-1]))


MODULE = Module(
    {
        "objective": Evaluation(ERRORS, prepare, errors_as_json, numbers_of_errors),
        "jacobian": Evaluation(jacobian, prepare, jacobian_as_json, numbers_of_jacobian),
    },
    example={
        "n": 2,
        "m": 3,
        "p": 5,
        "cam": [0.1, -0.2, 0.3, 0.5, 0.1, -0.4, 1.5, 0.2, 0.1, 0.01, -0.02],
        "x": [0.3, -0.5, 2.0],
        "w": 0.7,
        "feat": [0.4, -0.3],
    },
)
