"""Files of a run of `ctrlgrad train`, and the parts that must be the same in two runs."""

from __future__ import annotations

import json

import numpy as np

from ctrlgrad.train.checkpoint import read

KEYS = [
    "validation_bits_per_char",
    "unigram_bits_per_char",
    "bigram_bits_per_char",
    "steps",
    "seconds",
    "characters_per_second",
    "peak_memory_bytes",
    "verified",
]


def metrics_of(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def numbers(result):
    """The parts that must not differ between runs: everything except times and memory."""
    figures = {k: result.summary[k] for k in KEYS if k not in ("seconds", "characters_per_second", "peak_memory_bytes")}
    return figures, [(m["step"], m["bits_per_char"], m["validation_bits_per_char"]) for m in metrics_of(result.out)]


def assert_same_numbers(a, b):
    assert numbers(a) == numbers(b)
    tensors, others = (read(run.out / "checkpoint.safetensors").tensors for run in (a, b))
    assert tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, others[name], err_msg=name)
