"""The command `ctrlgrad`.

`train` is the main job, `sample` and `evaluate` use a model that it made, `graph` prints graphs, `verify` checks
derivatives, `profile` shows where a loop's bytes are, `demo` runs a recipe and draws its result, and `doctor` reports
on the installation. The modules:

    train       `ctrlgrad train`, `sample`, `evaluate`
    programs    `ctrlgrad graph`, `verify`, `profile` and `demo`
    doctor      `ctrlgrad doctor`
    errors      error texts with exit codes, and compilations that take long

This module loads typer alone; each subcommand loads the rest when it runs, so that `--help` is quick.
"""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

# Names that options of `train` take. Tests compare them with `ctrlgrad.train`, which `--help` does not load.
CellName = StrEnum("CellName", ["lstm", "gru", "rnn", "transformer"])
OptimiserName = StrEnum("OptimiserName", ["adam", "adamw", "sgd", "rmsprop", "adagrad", "lion"])
ScheduleName = StrEnum("ScheduleName", ["cosine", "constant", "linear"])
TokenName = StrEnum("TokenName", ["character", "byte", "word"])
PrecisionName = StrEnum("PrecisionName", ["float32", "float64", "bfloat16"])
EngineName = StrEnum("EngineName", ["auto", "dataflow", "native", "reference", "cuda"])

app = typer.Typer(
    help="Automatic differentiation of programs with data-dependent control flow.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _path(text: str) -> Path:
    """A path that was given; "" would be the current folder, which is never meant."""
    if not text:
        raise typer.BadParameter("an empty path; expected the path of a file or a folder, such as .")
    return Path(text)


def _file(help: str, metavar: str = "FILE", default: str | bool = True) -> Any:
    """An option that takes a path; `default` describes the one that is taken without it."""
    return typer.Option(parser=_path, metavar=metavar, help=help, show_default=default)


def _flag(name: str, help: str) -> Any:
    """An option that is given or not; without the name typer would add `--no-...`."""
    return typer.Option(name, help=help)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        from ctrlgrad import __version__

        typer.echo(f"ctrlgrad {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command()
def train(
    context: typer.Context,
    cell: Annotated[CellName, typer.Option(help="A recurrent cell, or a decoder with a cache.")] = CellName.lstm,
    hidden: Annotated[int, typer.Option(min=1, help="Size of each layer's state.")] = 128,
    layers: Annotated[int, typer.Option(min=1, help="Number of layers.")] = 1,
    batch: Annotated[int, typer.Option(min=1, help="Lines in a batch.")] = 32,
    steps: Annotated[int, typer.Option(min=1, help="Number of training steps.")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="Fixes the parameters' first values and the order of lines.")] = 0,
    embedding: Annotated[int, typer.Option(min=1, help="Size of a token's vector.")] = 64,
    tokens: Annotated[TokenName, typer.Option(help="What a line is split into.")] = TokenName.character,
    vocabulary: Annotated[int, typer.Option(min=0, help="The most kinds of tokens, by frequency; 0 for all.")] = 0,
    line_limit: Annotated[int, typer.Option(min=0, help="Longer lines become several; 0 for no limit.")] = 256,
    buckets: Annotated[bool, _flag("--buckets", "Lines of like length in one batch.")] = False,
    optimiser: Annotated[OptimiserName, typer.Option(help="By its name in ctrlgrad.optim.")] = OptimiserName.adam,
    learning_rate: Annotated[
        float | None, typer.Option(help="The highest rate.", show_default="0.01, of a transformer 0.003")
    ] = None,
    learning_rate_finder: Annotated[
        bool, _flag("--learning-rate-finder", "Only try rates in 100 steps, and say where the loss falls.")
    ] = False,
    schedule: Annotated[ScheduleName, typer.Option(help="How the rate falls, to a tenth.")] = ScheduleName.cosine,
    schedule_steps: Annotated[
        int | None, typer.Option(min=1, help="The step at which the schedule ends.", show_default="--steps")
    ] = None,
    warmup: Annotated[int, typer.Option(min=0, help="Steps in which the rate rises.")] = 20,
    clip: Annotated[float, typer.Option(min=0.0, help="The largest norm of all gradients; 0 for any.")] = 1.0,
    weight_decay: Annotated[float, typer.Option(min=0.0, help="The share of the weights that decays.")] = 0.0,
    dropout: Annotated[float, typer.Option(min=0.0, help="The share of each layer's input that is dropped.")] = 0.0,
    truncate: Annotated[int, typer.Option(min=0, help="Steps through which gradients go back; 0 for all.")] = 0,
    precision: Annotated[PrecisionName, typer.Option(help="Dtype of the parameters.")] = PrecisionName.float32,
    validation_interval: Annotated[
        int | None, typer.Option(min=1, help="Steps between validations.", show_default="five in a run")
    ] = None,
    patience: Annotated[int, typer.Option(min=0, help="End after so many validations without a better one.")] = 0,
    checkpoint_interval: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 50,
    engine: Annotated[
        EngineName, typer.Option(help="What runs the steps; auto: native, with --pipeline dataflow.")
    ] = EngineName.auto,
    pipeline: Annotated[
        bool, _flag("--pipeline", "Each layer on a device of its own; with mpirun, on different ranks.")
    ] = False,
    memory_budget: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory for saved values, such as 32MiB; the rest is swapped or recomputed."),
    ] = None,
    profile: Annotated[
        bool, _flag("--profile", "Record the memory of three steps: memory.txt, .json, .html and .png.")
    ] = False,
    text: Annotated[Path | None, _file("A text file in UTF-8.", default="the language reference inside Python")] = None,
    validation: Annotated[Path | None, _file("A text for validation.", default="every tenth distinct line")] = None,
    out: Annotated[Path | None, _file("Folder for the results.", "DIR", default="the first free runs/NUMBER")] = None,
    resume: Annotated[
        bool, _flag("--resume", "Continue the run in --out, with its own options; --steps may be larger.")
    ] = False,
    verify: Annotated[bool, _flag("--verify", "First compare a gradient with JAX (needs the extra jax).")] = False,
    json: Annotated[bool, _flag("--json", "Print the summary alone, as JSON.")] = False,
) -> None:
    """Train a model on lines of text; the loss is one data-dependent loop.

    With mpirun -n N in front (needs the extra mpi), N processes share every batch, or with --pipeline the layers, and
    the run is the same.

    Exit codes: 0 done; 1 the check failed or training diverged; 2 unusable input; 130 stopped by Ctrl-C.
    """
    from ctrlgrad.cli.errors import reported  # loads rich and the library
    from ctrlgrad.cli.train import Request, train_and_report
    from ctrlgrad.train.settings import Settings

    with reported():
        options = {name: getattr(context.params[name], "value", context.params[name]) for name in Settings.__slots__}
        sources = {name: context.get_parameter_source(name) for name in options}
        given = [name for name, source in sources.items() if source is not None and source.name != "DEFAULT"]
        finds = learning_rate_finder
        train_and_report(Request(options, given, text, out, validation, resume, verify, json, profile, finds))


_RUN = typer.Argument(parser=_path, metavar="RUN", help="The folder of a run of ctrlgrad train.")
_BEST = typer.Option("--best", help="The step with the best validation, not the last.")


@app.command()
def sample(
    run: Annotated[Path, _RUN],
    prompt: Annotated[str, typer.Option(help="How each line begins.")] = "",
    temperature: Annotated[float, typer.Option(help="Below 1 likelier lines, above it more surprising ones.")] = 1.0,
    count: Annotated[int, typer.Option(min=1, help="Number of lines.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Fixes the lines.")] = 0,
    best: Annotated[bool, _BEST] = False,
) -> None:
    """Print lines that a trained model writes.

    Exit codes: 0 done; 2 there is no such run, or it cannot be used.
    """
    from ctrlgrad.cli.errors import reported
    from ctrlgrad.cli.train import sample_and_report

    with reported():
        sample_and_report(run, prompt, temperature, count, seed, best)


@app.command()
def evaluate(
    run: Annotated[Path, _RUN],
    file: Annotated[Path, typer.Argument(parser=_path, metavar="FILE", help="A text file in UTF-8.")],
    json: Annotated[bool, _flag("--json", "Print the figures as JSON.")] = False,
    best: Annotated[bool, _BEST] = False,
) -> None:
    """Print the bits per token and the perplexity of a text under a trained model, each line's end counted as a token.

    Exit codes: 0 done; 2 there is no such run or text.
    """
    from ctrlgrad.cli.errors import reported
    from ctrlgrad.cli.train import evaluate_and_report

    with reported():
        evaluate_and_report(run, file, json, best)


@app.command()
def graph(
    target: Annotated[str, typer.Argument(metavar="FILE.py:FUNCTION", help="A file, and a function in it.")],
    grad: Annotated[bool, _flag("--grad", "Print the graph of its gradient.")] = False,
    dot: Annotated[bool, _flag("--dot", "With --lowered or --partitioned: print Graphviz DOT.")] = False,
    svg: Annotated[Path | None, _file("Draw it into an SVG file.")] = None,
    html: Annotated[Path | None, _file("Make a page of it, in which loops fold.")] = None,
    sources: Annotated[bool, _flag("--sources", "Show the file and line that each node comes from.")] = False,
    lowered: Annotated[bool, _flag("--lowered", "Lowered to Switch, Merge, Enter, Exit and NextIteration.")] = False,
    partitioned: Annotated[
        bool, _flag("--partitioned", "What each device runs, with Send and Recv between them.")
    ] = False,
    plan: Annotated[
        bool, _flag("--plan", "Print what the native engine makes of it: memory, kernels, products.")
    ] = False,
) -> None:
    """Print the graph that a function is traced to, or draw it.

    The file also holds a function example_args() that returns a tuple of arguments: their dtypes and shapes are the
    graph's. With --grad, the gradient is with respect to the first of them.
    """
    from ctrlgrad.cli.errors import reported
    from ctrlgrad.cli.programs import graph_text, stage_of, write_drawing

    with reported():
        files = {form: path for form, path in (("svg", svg), ("html", html)) if path is not None}
        stage = stage_of(
            lowered=lowered, partitioned=partitioned, plan=plan, sources=sources, dot=dot, is_drawn=bool(files)
        )
        for form, path in files.items():
            write_drawing(target, path, form, grad=grad)
        if not files:
            typer.echo(graph_text(target, grad=grad, dot=dot, sources=sources, stage=stage))


@app.command()
def verify(
    target: Annotated[str, typer.Argument(metavar="FILE.py:FUNCTION", help="A file, and a function in it.")],
    npz: Annotated[
        Path | None, _file("A file of arrays arg0, arg1, ... or named as the parameters are.", default="example_args()")
    ] = None,
    order: Annotated[int, typer.Option(min=1, help="The highest order of derivatives.")] = 2,
    modes: Annotated[str, typer.Option(help="rev, fwd or both; above order 1, every combination.")] = "rev,fwd",
    against: Annotated[str, typer.Option(help="The judges.")] = "finite_differences,jax",
    seed: Annotated[int, typer.Option(min=0, help="Fixes the random directions and cotangents.")] = 0,
    json: Annotated[bool, _flag("--json", "Print the comparisons as JSON.")] = False,
) -> None:
    """Compare a function's derivatives with finite differences and with JAX (needs the extra jax).

    The arguments are what the file's function example_args() returns, a tuple, or the arrays in --npz. The table has a
    row for each argument, order, mode and judge, with the largest error and the error that is tolerated. A row where
    the judge could not judge says why, and counts neither way.

    Exit codes: 0 all that were judged agree; 1 some disagree, or no derivative could be judged; 2 unusable input.
    """
    from ctrlgrad.cli.errors import reported
    from ctrlgrad.cli.programs import request_of, verify_and_report

    with reported():
        verify_and_report(target, npz, request_of(order, modes, against, seed), as_json=json)


@app.command()
def profile(
    target: Annotated[str, typer.Argument(metavar="FILE.py:FUNCTION", help="A file, and a function in it.")],
    device_budget: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Device memory, such as 64MiB.", show_default="no limit")
    ] = None,
    host_budget: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Pinned host memory, for devices that have it.", show_default="no limit"),
    ] = None,
    disk: Annotated[
        Path | None, _file("Where spilled blocks go.", "FOLDER", default="the system's temporary folder")
    ] = None,
    grad: Annotated[bool, _flag("--grad", "Run the gradient with respect to the first argument.")] = False,
    output: Annotated[Path, _file("Write STEM.txt, .json, .html and .png.", "STEM")] = Path("memory-profile"),
) -> None:
    """Run a function under a memory budget and show what its loops kept, moved, computed again and waited for.

    The arguments are what the file's function example_args() returns, a tuple. The function runs twice; the second run,
    when everything is compiled, is shown. STEM.json is a trace that https://ui.perfetto.dev opens, STEM.html a page
    for the browser.

    Exit codes: 0 done; 1 the function failed; 2 unusable input, or a budget that is too small.
    """
    from ctrlgrad.cli.errors import reported
    from ctrlgrad.cli.programs import Limits, profile_and_report

    with reported():
        profile_and_report(target, Limits(device_budget, host_budget, disk), output, grad=grad)


@app.command()
def demo(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One of the demos; without it they are listed.")
    ] = None,
    out: Annotated[Path | None, _file("Where the picture goes.", default="NAME.png")] = None,
) -> None:
    """Run a recipe of the documentation for some seconds, say what it shows and draw it (needs the extra plot).

    Exit codes: 0 done; 2 there is no such demo, or the picture cannot be drawn.
    """
    from ctrlgrad.cli.errors import reported
    from ctrlgrad.cli.programs import list_demos, run_and_draw

    with reported():
        if name is None:
            list_demos()
        else:
            run_and_draw(name, Path(f"{name}.png") if out is None else out)


@app.command()
def doctor() -> None:
    """Tell what is installed, on which machine, where compiled code is kept, and whether each engine works.

    Exit codes: 0 all that is installed works; 1 something does not.
    """
    from ctrlgrad.cli.doctor import examine_and_report
    from ctrlgrad.cli.errors import reported

    with reported():
        examine_and_report()


# Variables that the usual builds of NumPy read, when they are loaded, for the number of threads of a matrix product.
_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def main() -> None:
    """The console script."""
    if "train" in sys.argv[1:2]:
        _use_one_thread_per_product()
        # Under `mpirun` silence every rank but 0, which all fail alike until they have found each other.
        from ctrlgrad.mpi.launch import launched

        launch = launched()
        if launch is not None and launch.rank > 0:
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  for as long as the process lives
    app(prog_name="ctrlgrad")


def _use_one_thread_per_product() -> None:
    """Start this process anew with one BLAS thread, unless the user has set a number.

    The products of one time step are too small to share: with two threads that spin while they wait, a step took
    ten times as long on two busy cores. NumPy reads the number when it is loaded, which has happened by now.
    """
    if os.name != "posix" or any(name in os.environ for name in _THREAD_VARIABLES):
        return
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
