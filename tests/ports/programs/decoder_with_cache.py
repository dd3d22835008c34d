"""A decoder of tokens that keeps keys and values of the past in a cache: teacher forcing, and sampling."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax, random

END = 0


@partial(jax.tree_util.register_dataclass, data_fields=["keys", "values", "length"], meta_fields=[])
@dataclasses.dataclass
class Cache:
    """Of every layer `[layers, positions, heads, width]`; `length` positions are filled."""

    keys: jax.Array
    values: jax.Array
    length: jax.Array

    @classmethod
    def empty(cls, layers, positions, heads, width):
        zeros = jnp.zeros((layers, positions, heads, width))
        return cls(zeros, zeros, jnp.array(0))


def init_params(key, vocabulary, layers, heads, width, positions):
    dims = heads * width
    keys = iter(random.split(key, 3 + 4 * layers))

    def matrix(*shape):
        return random.normal(next(keys), shape) * shape[0] ** -0.5

    blocks = [
        {
            "qkv": matrix(dims, 3, heads, width),
            "out": matrix(dims, dims),
            "norms": jnp.ones((2, dims)),
            "mlp": (matrix(dims, 2 * dims), jnp.zeros(2 * dims), matrix(2 * dims, dims)),
        }
        for _ in range(layers)
    ]
    return {
        "embedding": matrix(vocabulary, dims),
        "positions": 0.1 * matrix(positions, dims),
        # Layers along the first axis, for a scan over them.
        "blocks": jax.tree.map(lambda *xs: jnp.stack(xs), *blocks),
        "norm": jnp.ones(dims),
    }


def rms_norm(scale, x):
    return scale * x * lax.rsqrt(jnp.mean(x**2) + 1e-6)


def attend(query, keys, values, length):
    """One query `[heads, width]` against the first `length` positions of the cache."""
    scores = jnp.einsum("hw,phw->hp", query, keys) / jnp.sqrt(query.shape[-1])
    is_past = jnp.arange(keys.shape[0]) < length
    weights = jax.nn.softmax(jnp.where(is_past, scores, -jnp.inf), axis=-1)
    return jnp.einsum("hp,phw->hw", weights, values)


def decode(params, cache, token):
    """Scores of the next token, and the cache with this one."""
    x = params["embedding"][token] + lax.dynamic_index_in_dim(params["positions"], cache.length, keepdims=False)

    @jax.checkpoint
    def block(x, inputs):
        p, keys, values = inputs
        q, k, v = jnp.einsum("d,dchw->chw", rms_norm(p["norms"][0], x), p["qkv"])
        keys = lax.dynamic_update_slice(keys, k[None], (cache.length, 0, 0))
        values = lax.dynamic_update_slice_in_dim(values, v[None], cache.length, axis=0)
        x = x + attend(q, keys, values, cache.length + 1).reshape(-1) @ p["out"]
        w_in, b_in, w_out = p["mlp"]
        x = x + jax.nn.gelu(rms_norm(p["norms"][1], x) @ w_in + b_in) @ w_out
        return x, (keys, values)

    x, (keys, values) = lax.scan(block, x, (params["blocks"], cache.keys, cache.values))
    scores = rms_norm(params["norm"], x) @ params["embedding"].T
    return scores, Cache(keys, values, cache.length + 1)


def empty_cache(params):
    layers, _, _, heads, width = params["blocks"]["qkv"].shape
    return Cache.empty(layers, params["positions"].shape[0], heads, width)


def loss(params, tokens):
    """Mean negative log likelihood of the tokens after the first, each given those before it."""

    def step(cache, pair):
        token, following = pair
        scores, cache = decode(params, cache, token)
        return cache, -jax.nn.log_softmax(scores)[following]

    _, losses = lax.scan(step, empty_cache(params), (tokens[:-1], tokens[1:]))
    return losses.mean()


def batch_loss(params, batch):
    return jax.vmap(loss, in_axes=(None, 0))(params, batch).mean()


@jax.jit
def generate(params, prompt, key, temperature=1.0):
    """A sample that follows the prompt up to the end token or the last position: tokens, length, log probability."""
    positions = params["positions"].shape[0]

    def prefill(cache, token):
        scores, cache = decode(params, cache, token)
        return cache, scores

    cache, all_scores = lax.scan(prefill, empty_cache(params), prompt)
    tokens = jnp.zeros(positions + 1, dtype=prompt.dtype).at[: prompt.shape[0]].set(prompt)

    def goes_on(carry):
        tokens, cache, _, _, _ = carry
        return (tokens[cache.length] != END) & (cache.length < positions)

    def sample(carry, scores, cache):
        tokens, _, _, log_p, key = carry
        key, key_sample = random.split(key)
        token = random.categorical(key_sample, scores / temperature).astype(tokens.dtype)
        tokens = lax.dynamic_update_slice(tokens, token[None], (cache.length,))
        return tokens, cache, scores, log_p + jax.nn.log_softmax(scores / temperature)[token], key

    def body(carry):
        tokens, cache, _, _, _ = carry
        return sample(carry, *decode(params, cache, tokens[cache.length]))

    first = sample((tokens, cache, all_scores[-1], 0.0, key), all_scores[-1], cache)
    tokens, cache, _, log_p, _ = lax.while_loop(goes_on, body, first)
    return tokens, cache.length, log_p


@jax.jit
def train_step(params, batch, rate):
    value, grads = jax.value_and_grad(batch_loss)(params, batch)
    norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in jax.tree.leaves(grads)))
    clipped = jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / norm), grads)
    return jax.tree_util.tree_map(lambda p, g: p - rate * g, params, clipped), value
