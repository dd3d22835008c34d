"""A text and a runner that the tests of the command share."""

import json
import random
import signal
from functools import cache

import pytest
from typer import main, testing

from ctrlgrad.cli import app
from ctrlgrad.train import metrics, trainer

SMALL = ("--hidden", "8", "--batch", "4")
DRAW = metrics.plot
built = cache(main.get_command)


@pytest.fixture(autouse=True)
def _command_is_built_once(monkeypatch):
    """Of the functions' signatures, which takes as long as a command of bad input does."""
    monkeypatch.setattr(testing, "_get_command", built)


@pytest.fixture(autouse=True)
def _no_drawing(monkeypatch):
    """To draw a picture takes longer than the runs of these tests; `drawing` is for the one that looks at it."""
    monkeypatch.setattr(metrics, "plot", lambda path, lines, summary: path.write_bytes(b"drawn") > 0)


@pytest.fixture
def drawing(_no_drawing, monkeypatch):
    monkeypatch.setattr(metrics, "plot", DRAW)


@pytest.fixture
def text(tmp_path):
    """120 different lines of different length, of few words."""
    rng = random.Random(0)
    words = ["loop", "stack", "value", "graph", "push", "pop", "branch"]
    path = tmp_path / "text.txt"
    path.write_text("\n".join(f"{n} " + " ".join(rng.choices(words, k=rng.randint(1, 3))) for n in range(120)))
    return path


@pytest.fixture
def command():
    """Run the command in this process: `command("train", "--steps", 3)`."""

    def run(*arguments):
        return testing.CliRunner().invoke(app, [str(a) for a in arguments])

    return run


@pytest.fixture
def train(command, text, tmp_path):
    """Run a small training and return what it printed and left in the folder `name`."""

    def run(name, *arguments, steps=30, text=text):
        out = tmp_path / name
        result = command("train", *SMALL, "--steps", steps, "--text", text, "--out", out, *arguments)
        summary = out / "summary.json"
        result.summary = json.loads(summary.read_text()) if summary.exists() else None
        result.out = out
        return result

    return run


@pytest.fixture
def train_until(train, monkeypatch):
    """Run a small training and press Ctrl-C in it after a step."""

    def run_until(stop, name, *arguments):
        run = trainer.run

        def stopped_run(job, on_step):
            def pressing(m):
                on_step(m)
                if m.step == stop:
                    signal.raise_signal(signal.SIGINT)

            return run(job, pressing)

        with monkeypatch.context() as patch:
            patch.setattr(trainer, "run", stopped_run)
            return train(name, *arguments)

    return run_until
