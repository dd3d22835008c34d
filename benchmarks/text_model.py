"""`ctrlgrad train` beside the same model in PyTorch: time for a step, and perplexity after as many steps.

`python -m benchmarks.text_model` trains both on the first megabytes of the source files of Python's standard library,
in two processes that take turns of ten steps, so that what else the machine does meets both. Each has the same first
parameters, batches, schedule, clipping and Adam; PyTorch's second bias, which ours has not, stays 0. It takes `nn.LSTM`
over padded batches, or with `--packed` over packed sequences, and its fused Adam. Each side judges its own parameters
on the same validation lines.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import multiprocessing
import os
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import header
from benchmarks.process import THREAD_COUNTS
from ctrlgrad.train import corpus, text, to_torch, trainer
from ctrlgrad.train.settings import Settings

TURN = 10


def library_text(folder: Path, size: int) -> Path:
    """A file with the first `size` bytes of the standard library's source files, by their paths."""
    path = folder / "library.txt"
    data = bytearray()
    for file in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" not in file.parts and len(data) < size:
            data += file.read_text("utf-8", "replace").encode()
    path.write_bytes(data[:size].decode("utf-8", "ignore").encode())
    return path


def job_of(path: Path, settings: Settings, lines: int) -> trainer.Job:
    """The run of the command, of which so many lines are for validation."""
    read = corpus.load(path, settings.batch, settings.reading)
    chosen = read.validation[:: max(1, len(read.validation) // lines)]
    return text.prepare(settings, dataclasses.replace(read, validation=chosen), str(path), path.parent / "run")


Side = tuple[Callable[[], float], Callable[[], float]]


def with_ctrlgrad(job: trainer.Job, packed: bool) -> Side:
    """A step, which returns its bits per token, and the validation's bits per token."""
    found: dict[str, Any] = {}

    def states() -> Iterator[Any]:
        unjudged = dataclasses.replace(job, validation_interval=1 << 50, steps=1 << 50)
        yield from trainer.steps(unjudged, lambda step: found.update(bits=step.loss), lambda: None, bool)

    run = states()

    def step() -> float:
        found["state"], _ = next(run)
        return float(found["bits"])

    return step, lambda: float(job.task.validate(found["state"].params, bool))


def with_torch(job: trainer.Job, packed: bool) -> Side:
    """The same of `torch.nn.LSTM`."""
    import torch
    from torch import nn

    settings, params, model = job.task.settings, job.state.params, job.task.model
    net = nn.LSTM(settings.embedding, settings.hidden, settings.layers)
    net.load_state_dict({k: torch.from_numpy(w.copy()) for k, w in to_torch("lstm", params["layers"]).items()})
    for name, p in net.named_parameters():
        p.requires_grad_(not name.startswith("bias_hh"))
    table = nn.Parameter(torch.from_numpy(np.array(params["embedding"])))
    w, b = (nn.Parameter(torch.from_numpy(np.array(params["out"][name]))) for name in "wb")
    trained = [table, w, b, *(p for p in net.parameters() if p.requires_grad)]
    rate, number = settings.rate(), 0
    adam = torch.optim.Adam(trained, lr=1.0, fused=True)

    def nats(symbols: np.ndarray, lengths: np.ndarray) -> Any:
        """The sum of all tokens' costs."""
        tokens, counts = torch.from_numpy(symbols), torch.from_numpy(lengths)
        inputs, targets = tokens[:-1], tokens[1:]
        if packed:
            pack = nn.utils.rnn.pack_padded_sequence
            hs = net(pack(table[inputs], counts, enforce_sorted=False))[0].data
            targets = pack(targets, counts, enforce_sorted=False).data
            return nn.functional.cross_entropy(hs @ w + b, targets, reduction="sum")
        hs, _ = net(table[inputs])
        mask = torch.arange(len(inputs))[:, None] < counts
        return nn.functional.cross_entropy(hs[mask] @ w + b, targets[mask], reduction="sum")

    def step() -> float:
        nonlocal number
        batch = job.task.share_at(number)
        loss = nats(*batch.arguments[:2]) / (batch.characters * math.log(2))
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(trained, settings.clip)
        adam.param_groups[0]["lr"] = float(rate(number))
        adam.step()
        number += 1
        return float(loss.detach())

    def judge() -> float:
        bits, count = 0.0, 0
        with torch.no_grad():
            for lines in corpus.validation_lines(job.task.corpus.validation, settings.batch):
                full = [line for line in lines if len(line)]
                batch = corpus.pad(full, len(full))
                bits += float(nats(batch.symbols, batch.lengths)) / math.log(2)
                count += batch.characters
        return bits / count

    assert model.dtype == np.float32
    return step, judge


SIDES = {"ctrlgrad": with_ctrlgrad, "torch nn.LSTM": with_torch}


def serve(side: str, path: Path, settings: Settings, lines: int, threads: int, packed: bool, pipe: Any) -> None:
    """One side's process: answers `steps`, how many, and `judge`."""
    if side != "ctrlgrad":
        import torch

        torch.set_num_threads(threads)
    step, judge = SIDES[side](job_of(path, settings, lines), packed)
    pipe.send("ready")
    while (asked := pipe.recv()) is not None:
        start, used = time.perf_counter(), time.process_time()
        found = judge() if asked == "judge" else [step() for _ in range(asked)][-1]
        pipe.send((found, time.perf_counter() - start, time.process_time() - used))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--megabytes", type=float, default=10.0)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--embedding", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lines", type=int, default=2000, help="lines of the validation part")
    parser.add_argument("--judgements", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--packed", action="store_true")
    given = parser.parse_args()
    settings = Settings(
        hidden=given.hidden, embedding=given.embedding, batch=given.batch, steps=given.steps, engine="native"
    )
    os.environ |= dict.fromkeys(("CTRLGRAD_THREADS", *THREAD_COUNTS), str(given.threads))
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        path = library_text(Path(folder), int(given.megabytes * 1e6))
        pipes, processes = {}, []
        for side in SIDES:
            pipes[side], theirs = context.Pipe()
            arguments = (side, path, settings, given.lines, given.threads, given.packed, theirs)
            processes.append(context.Process(target=serve, args=arguments, daemon=True))
            processes[-1].start()
            assert pipes[side].recv() == "ready"

        def ask(side: str, what: Any) -> Any:
            pipes[side].send(what)
            return pipes[side].recv()

        print(header("native"), f"PyTorch {metadata.version('torch')}; {vars(given)}", sep=", ", flush=True)
        turns: dict[str, list[Any]] = {side: [] for side in SIDES}
        every = max(1, given.steps // given.judgements // TURN) * TURN
        print("step | training bits per token | validation perplexity | ms a step | processor ms a step")
        print("each: " + ", ".join(SIDES))
        for done in range(TURN, given.steps + 1, TURN):
            order = list(SIDES) if done // TURN % 2 else list(SIDES)[::-1]
            bits = {side: ask(side, TURN) for side in order}
            for side in SIDES:
                if done > TURN:  # the first turn compiles
                    turns[side].append(1e3 / TURN * np.array(bits[side][1:]))
            if done % every == 0:
                judged = [2 ** ask(side, "judge")[0] for side in SIDES]
                times = np.array([np.median(turns[side], axis=0) for side in SIDES]).T
                columns = [[bits[side][0] for side in SIDES], judged, *times]
                print(done, *("  ".join(f"{x:.4f}" for x in column) for column in columns), sep=" | ", flush=True)
        ours, theirs = (np.array(turns[side]) for side in SIDES)
        for number, name in enumerate(("elapsed", "processor")):
            a, b = theirs[:, number], ours[:, number]
            quartiles, total = "  ".join(f"{q:.2f}" for q in np.quantile(a / b, [0.25, 0.5, 0.75])), a.sum() / b.sum()
            print(f"torch / ctrlgrad, {name} time: all steps {total:.2f}; quartiles of turns {quartiles}")
        for side, process in zip(SIDES, processes, strict=True):
            pipes[side].send(None)
            process.join()


if __name__ == "__main__":
    main()
