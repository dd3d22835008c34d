"""A step of MuJoCo's simulator for JAX, differentiated through the solver's loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from interop.libraries import JAX_REFUSES, close, directional

pytest.importorskip("mujoco.mjx", reason="the simulator is not installed")

import jax
import mujoco
from mujoco import mjx

import ctrlgrad as cg

OPTION = '<option timestep="0.01" solver="Newton" iterations="10" ls_iterations="10"/>'
SLIDER = f"""
<mujoco>
  {OPTION}
  <worldbody>
    <geom type="plane" size="5 5 .1"/>
    <body pos="0 0 0.09">
      <joint name="x" type="slide" axis="1 0 0"/>
      <joint name="z" type="slide" axis="0 0 1"/>
      <geom type="sphere" size="0.1" mass="1"/>
    </body>
  </worldbody>
  <actuator><motor joint="x" gear="1"/></actuator>
</mujoco>
"""
ARM = f"""
<mujoco>
  {OPTION}
  <worldbody>
    <geom type="plane" size="5 5 .1"/>
    <body pos="0 0 0.165">
      <freejoint/>
      <geom type="box" size=".05 .06 .07" mass="1"/>
      <geom type="capsule" fromto="0 0 -.1 0 0 -.15" size=".03" mass=".2"/>
      <body pos="0.1 0 0">
        <joint name="h" type="hinge" axis="0 1 0" range="-0.2 0.2" limited="true" damping="0.1" frictionloss="0.01"/>
        <geom type="sphere" size=".08" pos="0.2 0 -0.1" mass="1"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor joint="h" gear="1"/></actuator>
</mujoco>
"""


def step_of(text: str) -> Any:
    """A step as a function of positions, velocities and controls, to a number; and the model."""
    model = mujoco.MjModel.from_xml_string(text)
    here, start = mjx.put_model(model), mjx.make_data(model)
    rng = np.random.default_rng(1)
    of_positions, of_velocities = rng.normal(size=model.nq), rng.normal(size=model.nv)

    def step(qpos: Any, qvel: Any, ctrl: Any) -> Any:
        data = mjx.step(here, start.replace(qpos=qpos, qvel=qvel, ctrl=ctrl))
        return (of_positions * data.qpos).sum() + (of_velocities * data.qvel).sum()

    return step, model


def check_step(text: str, qpos: Any, engine: str) -> None:
    with jax.enable_x64(True), cg.options(engine=engine):
        step, model = step_of(text)
        args = (qpos(model), 0.1 * np.random.default_rng(2).normal(size=model.nv), np.array([0.3]))
        compiled, read = jax.jit(step), cg.from_jax(step)
        close(read(*args), compiled(*args))
        with pytest.raises(ValueError, match=JAX_REFUSES):
            jax.grad(compiled)(*args)
        gradients = cg.grad(read, argnums=(0, 1, 2))(*args)
        if engine == "native":
            # As JAX has it by forward mode; compiling that takes longer than all the rest.
            close(gradients, jax.jacfwd(compiled, argnums=(0, 1, 2))(*args), 1e-8)
        assert any(np.abs(g).max() > 1e-3 for g in gradients)
        difference, found = directional(compiled, args, gradients)
        assert found == pytest.approx(difference, rel=1e-5)


@pytest.mark.parametrize("engine", ["reference", pytest.param("native", marks=pytest.mark.long)])
def test_the_gradient_of_a_step_in_contact(engine: str) -> None:
    check_step(SLIDER, lambda model: np.array([0.0, 0.0]), engine)


@pytest.mark.long
def test_the_gradient_of_a_step_with_a_free_body_a_limited_joint_and_friction() -> None:
    check_step(ARM, lambda model: np.append(model.qpos0[:-1], 0.19), "reference")
