"""Proximal policy optimisation of a pendulum: rollout, advantages and epochs of minibatches, compiled as one."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, random, vmap

EPISODE = 6
DT = 0.1


class Env(NamedTuple):
    angle: jax.Array
    speed: jax.Array
    step: jax.Array


class Transition(NamedTuple):
    observation: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    done: jax.Array


class Learner(NamedTuple):
    params: Any
    momentum: Any
    envs: Env
    key: jax.Array


def reset(key):
    angle, speed = random.uniform(key, (2,), minval=-1.0, maxval=1.0)
    return Env(angle * jnp.pi, speed, jnp.array(0))


def observe(env):
    return jnp.stack([jnp.cos(env.angle), jnp.sin(env.angle), env.speed])


def env_step(key, env, action):
    """The next state, a new episode's where this one ended, with reward and whether it ended."""
    force = jnp.clip(action, -2.0, 2.0)
    wrapped = jnp.mod(env.angle + jnp.pi, 2 * jnp.pi) - jnp.pi
    reward = -(wrapped**2 + 0.1 * env.speed**2 + 0.001 * force**2)
    speed = jnp.clip(env.speed + DT * (15.0 * jnp.sin(env.angle) + 3.0 * force), -8.0, 8.0)
    env = Env(env.angle + DT * speed, speed, env.step + 1)
    done = env.step >= EPISODE
    return lax.cond(done, lambda: reset(key), lambda: env), reward, done


def init_params(key, hidden=8):
    def dense(key, rows, columns, scale):
        return {"w": random.orthogonal(key, max(rows, columns))[:rows, :columns] * scale, "b": jnp.zeros(columns)}

    keys = random.split(key, 4)
    return {
        "policy": [dense(keys[0], 3, hidden, jnp.sqrt(2)), dense(keys[1], hidden, 1, 0.1)],
        "value": [dense(keys[2], 3, hidden, jnp.sqrt(2)), dense(keys[3], hidden, 1, 1.0)],
        "log_std": jnp.zeros(1),
    }


def mlp(layers, x):
    *hidden, last = layers
    for layer in hidden:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ last["w"] + last["b"]


def normal_log_prob(mean, log_std, x):
    return jnp.sum(-0.5 * ((x - mean) / jnp.exp(log_std)) ** 2 - log_std - 0.5 * jnp.log(2 * jnp.pi), axis=-1)


def rollout(params, envs, key, steps):
    """Transitions `[steps, environments]` by the policy, and the environments after them."""

    def step(carry, key):
        envs = carry
        key_action, key_env = random.split(key)
        observation = vmap(observe)(envs)
        mean = mlp(params["policy"], observation)
        action = mean + jnp.exp(params["log_std"]) * random.normal(key_action, mean.shape)
        log_prob = normal_log_prob(mean, params["log_std"], action)
        value = mlp(params["value"], observation)[..., 0]
        keys = random.split(key_env, envs.angle.shape[0])
        envs, reward, done = vmap(env_step)(keys, envs, action[..., 0])
        return envs, Transition(observation, action, log_prob, value, reward, done)

    return lax.scan(step, envs, random.split(key, steps))


def advantages(transitions, last_value, discount=0.95, decay=0.9):
    """Generalised advantage estimates, from the last step to the first."""

    def step(carry, t):
        advantage, next_value = carry
        goes_on = 1.0 - t.done
        delta = t.reward + discount * next_value * goes_on - t.value
        advantage = delta + discount * decay * goes_on * advantage
        return (advantage, t.value), advantage

    _, out = lax.scan(step, (jnp.zeros_like(last_value), last_value), transitions, reverse=True)
    return out, out + transitions.value


def loss(params, batch, clip=0.2, entropy_weight=0.01):
    t, advantage, target = batch
    mean = mlp(params["policy"], t.observation)
    ratio = jnp.exp(normal_log_prob(mean, params["log_std"], t.action) - t.log_prob)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage).mean()
    value = mlp(params["value"], t.observation).squeeze(-1)
    clipped = t.value + jnp.clip(value - t.value, -clip, clip)
    value_loss = 0.5 * jnp.maximum((value - target) ** 2, (clipped - target) ** 2).mean()
    entropy = jnp.sum(params["log_std"] + 0.5 * jnp.log(2 * jnp.pi * jnp.e))
    share_clipped = (jnp.abs(ratio - 1.0) > clip).astype(float).mean()
    return -gain + 0.5 * value_loss - entropy_weight * entropy, {"value": value_loss, "clipped": share_clipped}


def make_learner(key, environments):
    key, key_params, key_envs = random.split(key, 3)
    params = init_params(key_params)
    envs = vmap(reset)(random.split(key_envs, environments))
    return Learner(params, jax.tree.map(jnp.zeros_like, params), envs, key)


def batch_of(learner, steps):
    """The training batch of one rollout, without an axis of environments."""
    key, key_rollout = random.split(learner.key)
    envs, transitions = rollout(learner.params, learner.envs, key_rollout, steps)
    last_value = mlp(learner.params["value"], vmap(observe)(envs))[..., 0]
    batch = (transitions, *advantages(transitions, last_value))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch), learner._replace(envs=envs, key=key)


@partial(jax.jit, static_argnums=(1, 2, 3))
def update(learner, steps=8, epochs=2, minibatches=2, rate=0.01):
    """One round: a rollout, and epochs over its shuffled minibatches."""
    batch, learner = batch_of(learner, steps)
    size = batch[1].shape[0]

    def epoch(learner, _):
        key, key_shuffle = random.split(learner.key)
        order = random.permutation(key_shuffle, size)
        shuffled = jax.tree.map(lambda x: x[order].reshape(minibatches, -1, *x.shape[1:]), batch)

        def minibatch(carry, part):
            params, momentum = carry
            (value, aux), grads = jax.value_and_grad(loss, has_aux=True)(params, part)
            momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
            params = jax.tree.map(lambda p, m: p - rate * m, params, momentum)
            return (params, momentum), (value, aux)

        (params, momentum), out = lax.scan(minibatch, (learner.params, learner.momentum), shuffled)
        return learner._replace(params=params, momentum=momentum, key=key), out

    learner, (values, aux) = lax.scan(epoch, learner, None, length=epochs)
    return learner, values.ravel(), jax.tree.map(jnp.mean, aux)
