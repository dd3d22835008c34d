"""Hand tracking: how far a posed hand is from measured points, and the Jacobian of that by forward mode.

The bones hang from each other: a loop over them composes the transforms, and one over their blended effects moves
the vertices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from benchmarks.gradbench.evaluation import Evaluation, Module

# Bones are the wrist, four of each finger, and the forearm; theta is a rotation, a translation, four angles a finger.
FINGERS, BONES, THETA = 5, 22, 26


def pose_angles(theta: Any) -> Any:
    """The angles of all bones about x, z and y: (22, 3)."""
    fingers = theta[6:].reshape(FINGERS, 4)
    none = cnp.zeros((FINGERS,))
    # A finger's first bone does not turn, its second one turns about two axes, the remaining ones about one.
    joints = [(none, none), (fingers[:, 0], fingers[:, 1]), (fingers[:, 2], none), (fingers[:, 3], none)]
    bent = cnp.stack([cnp.stack([x, z, none], axis=1) for x, z in joints], axis=1).reshape(4 * FINGERS, 3)
    return cnp.concat([cnp.zeros((1, 3)), bent, cnp.zeros((1, 3))])


def turn(angles: Any) -> Any:
    """The matrix (4, 4) that turns about x, then y, then z."""
    (sx, sz, sy), (cx, cz, cy) = ([f(angles[k]) for k in range(3)] for f in (cnp.sin, cnp.cos))
    zero, one = cnp.zeros_like(sx), cnp.ones_like(sx)
    entries = [
        [cz * cy, cz * sy * sx - sz * cx, cz * sy * cx + sz * sx, zero],
        [sz * cy, sz * sy * sx + cz * cx, sz * sy * cx - cz * sx, zero],
        [-sy, cy * sx, cy * cx, zero],
        [zero, zero, zero, one],
    ]
    return cnp.stack([cnp.stack(row) for row in entries])


def global_rotation(vector: Any) -> Any:
    """The matrix (3, 3) of a rotation about an axis by an angle, the vector's length."""
    angle = cnp.sqrt(cnp.sum(vector * vector))

    def rotation() -> Any:
        x, y, z = (vector[k] / angle for k in range(3))
        s, c = cnp.sin(angle), cnp.cos(angle)
        u = 1.0 - c
        entries = [
            [x * x + (1.0 - x * x) * c, x * y * u - z * s, x * z * u + y * s],
            [x * y * u + z * s, y * y + (1.0 - y * y) * c, y * z * u - x * s],
            [x * z * u - y * s, z * y * u + x * s, z * z + (1.0 - z * z) * c],
        ]
        return cnp.stack([cnp.stack(row) for row in entries])

    return cg.cond(angle < 1e-4, lambda: cnp.eye(3), rotation)


def vertices(theta: Any, model: Any) -> Any:
    """The positions of the hand's vertices, (vertices, 3)."""
    angles = pose_angles(theta)

    def hang(i: Any, absolutes: Any) -> Any:
        own = model["base_relatives"][i] @ turn(angles[i])
        parent = model["parents"][i]
        placed = cg.cond(parent < 0, lambda: own, lambda: absolutes[parent] @ own)
        return absolutes.at[i].set(placed)

    absolutes = cg.fori_loop(0, BONES, hang, cnp.zeros((BONES, 4, 4)))

    def blend(i: Any, positions: Any) -> Any:
        transform = absolutes[i] @ model["inverse_base_absolutes"][i]
        moved = model["base_positions"] @ transform[:3].T
        return positions + model["weights"][:, i][:, None] * moved

    count = model["base_positions"].shape[0]
    positions = cg.fori_loop(0, BONES, blend, cnp.zeros((count, 3)))
    return positions * model["mirror"] @ global_rotation(theta[:3]).T + theta[3:6]


def simple_error(theta: Any, us: Any, data: Any) -> Any:
    """Each point less the vertex that it corresponds to, (points, 3)."""
    del us
    return data["points"] - vertices(theta, data["model"])[data["correspondences"]]


def complicated_error(theta: Any, us: Any, data: Any) -> Any:
    """Each point less the point of a triangle that its coordinates `us` name, (points, 3)."""
    placed = vertices(theta, data["model"])
    corners = placed[data["model"]["triangles"][data["correspondences"]]]
    u, v = us[:, :1], us[:, 1:]
    return data["points"] - (u * corners[:, 0] + v * corners[:, 1] + (1.0 - u - v) * corners[:, 2])


def simple_jacobian(theta: Any, us: Any, data: Any) -> Any:
    return cg.jacfwd(simple_error)(theta, us, data).reshape(-1, THETA)


def complicated_jacobian(theta: Any, us: Any, data: Any) -> Any:
    """By a point's own two coordinates, then by theta: (3 points, 28)."""
    by_theta = cg.jacfwd(complicated_error)(theta, us, data).reshape(-1, THETA)
    # A point's error has its own coordinates alone, so one direction serves those of all points.
    own = [
        cg.jvp(lambda given: complicated_error(theta, given, data), (us,), (cnp.zeros_like(us).at[:, k].set(1.0),))[1]
        for k in range(2)
    ]
    return cnp.concat([cnp.stack(own, axis=2).reshape(-1, 2), by_theta], axis=1)


def _compiled(function: Any) -> Any:
    transforms, triples = cg.TensorSpec((BONES, 4, 4)), cg.TensorSpec((None, 3))
    model = {
        "parents": cg.TensorSpec((BONES,), "int64"),
        "base_relatives": transforms,
        "inverse_base_absolutes": transforms,
        "base_positions": cg.TensorSpec((None, 4)),
        "weights": cg.TensorSpec((None, BONES)),
        "triangles": cg.TensorSpec((None, 3), "int64"),
        "mirror": cg.TensorSpec((3,)),
    }
    data = {"model": model, "correspondences": cg.TensorSpec((None,), "int64"), "points": triples}
    return cg.function(function, signature=(cg.TensorSpec((THETA,)), cg.TensorSpec((None, 2)), data))


SIMPLE = {"objective": _compiled(simple_error), "jacobian": _compiled(simple_jacobian)}
COMPLICATED = {"objective": _compiled(complicated_error), "jacobian": _compiled(complicated_jacobian)}


def _of_either(name: str) -> Any:
    def compute(theta: Any, us: Any, data: Any) -> Any:
        return (COMPLICATED if len(us) else SIMPLE)[name](theta, us, data)

    return compute


def prepare(given: Mapping[str, Any]) -> tuple[Any, ...]:
    model, data = given["data"]["model"], given["data"]
    floats = ("base_relatives", "inverse_base_absolutes", "base_positions", "weights")
    prepared: dict[str, Any] = {name: np.array(model[name], np.float64) for name in floats}
    prepared |= {name: np.array(model[name], np.int64) for name in ("parents", "triangles")}
    prepared["mirror"] = np.array([-1.0 if model["is_mirrored"] else 1.0, 1.0, 1.0])
    points, numbers = np.array(data["points"], np.float64), np.array(data["correspondences"], np.int64)
    us = np.array(given["us"], np.float64).reshape(-1, 2)
    return np.array(given["theta"], np.float64), us, {"model": prepared, "correspondences": numbers, "points": points}


def as_flat_list(error: Any) -> Any:
    return error.reshape(-1).tolist()


def example(count: int = 9, points: int = 5, us: bool = True) -> dict[str, Any]:
    """Return an invented hand of `count` vertices, with its measured points."""
    rng = np.random.default_rng(0)
    model = {
        "bone_count": BONES,
        "bone_names": [f"bone {k}" for k in range(BONES)],
        "parents": [-1, *(0 if k % 4 == 0 else k for k in range(4 * FINGERS)), 0],
        "base_relatives": (np.eye(4) + 0.1 * rng.normal(size=(BONES, 4, 4))).tolist(),
        "inverse_base_absolutes": (np.eye(4) + 0.1 * rng.normal(size=(BONES, 4, 4))).tolist(),
        "base_positions": np.append(rng.normal(size=(count, 3)), np.ones((count, 1)), axis=1).tolist(),
        "weights": rng.random((count, BONES)).tolist(),
        "triangles": rng.integers(0, count, (7, 3)).tolist(),
        "is_mirrored": False,
    }
    data = {"model": model, "points": rng.normal(size=(points, 3)).tolist()}
    data["correspondences"] = rng.integers(0, 7 if us else count, points).tolist()
    own = rng.random((points, 2)).tolist() if us else []
    return {"theta": (0.3 * rng.normal(size=THETA)).tolist(), "data": data, "us": own}


MODULE = Module(
    {
        "objective": Evaluation(_of_either("objective"), prepare, as_flat_list),
        "jacobian": Evaluation(_of_either("jacobian"), prepare),
    },
    example(),
)
