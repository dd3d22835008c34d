"""`ctrlgrad train`: a run, shown while it goes on."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ctrlgrad import tree
from ctrlgrad.cli.errors import ending_of, print_ending
from ctrlgrad.errors import GradientMismatch, MemoryBudgetError
from ctrlgrad.memory.sizes import parse_size
from ctrlgrad.mpi.launch import join, number_of_ranks
from ctrlgrad.train import checkpoint, corpus, folder, metrics, text, trainer
from ctrlgrad.train.checkpoint import Saved
from ctrlgrad.train.folder import CHECKPOINT, PLOT
from ctrlgrad.train.metrics import Step, Summary
from ctrlgrad.train.ranks import DataParallel, Ranks
from ctrlgrad.train.settings import Settings
from ctrlgrad.train.text import Trained
from ctrlgrad.train.trainer import Job, enough
from ctrlgrad.train.verification import compare_with_jax, needed_judge, next_gradient

SAMPLES = 3
# A smoothed figure: each step's weight in what the progress bar shows.
_WEIGHT = 0.1


@dataclass(frozen=True)
class Request:
    """Request of the command line. `given` names the options that were given, not taken from their defaults."""

    options: Mapping[str, Any]
    given: Collection[str]
    text: Path | None
    out: Path | None
    validation: Path | None = None
    resume: bool = False
    verify: bool = False
    as_json: bool = False
    profile: bool = False
    finds_rate: bool = False


def train_and_report(request: Request) -> None:
    """Run `ctrlgrad train`; raises the library's errors, and `Interrupted`.

    Under `mpirun` every rank runs this. What goes wrong then ends all processes, with one message and one exit code.
    """
    with _processes() as ranks, ExitStack() as stack:
        # Where mpirun's output goes, the ranks cannot tell: it gives them a terminal of its own.
        console = Console(quiet=request.as_json or ranks.rank > 0, force_terminal=False if ranks.size > 1 else None)
        if request.verify:
            needed_judge()  # what is missing is told before anything is read or made
        job, settings = _job(request, ranks, stack)
        if not request.finds_rate:
            console.print(_headline(job), highlight=False)
        for line in job.task.corpus.report:
            console.print(line, highlight=False)
        if job.state.step and settings.steps > settings.schedule_end:
            end = f"The learning rate's schedule ends at step {settings.schedule_end}: later steps have its last rate."
            console.print(f"{end} A longer --schedule-steps changes the steps from here on.", highlight=False)
        if request.verify:
            grads = next_gradient(job)
            verified = job.ranks.from_first(lambda: _verified(job, grads, console, request.as_json))
            job = job.with_verified(bool(verified))
        if request.finds_rate:
            _try_rates(job, console, request.as_json)
            return
        try:
            with _progress(console, job) as on_step:
                summary, state = trainer.run(job, on_step)
        except MemoryBudgetError as error:
            raise _with_enough(error, job) from None
        if ranks.rank > 0:
            return
        if request.as_json:
            typer.echo(summary.json())
            return
        _print_summary(console, job, summary)
        # One line is written on the processor, wherever the parameters lie.
        params = tree.map(np.asarray, state.params)
        trained = Trained(job.task.model, params, job.task.corpus.vocabulary, settings, state.step)
        for number in range(SAMPLES):
            console.print(Text("  " + trained.sample(seed=number)), soft_wrap=True)


@contextmanager
def _processes() -> Iterator[Ranks]:
    """Ranks of the run: this process, or all that `mpirun` has started. The end of one ends all."""
    if number_of_ranks() == 1:
        yield Ranks()
        return
    joined = join()
    # Up to here every rank fails alike, and rank 0 alone speaks (see `ctrlgrad.cli.main`).
    sys.stderr = sys.__stderr__
    watch = joined.watch
    watch.show = print_ending
    watch.advice = "the same command again"
    watch.catch_signals()
    try:
        yield DataParallel(joined.world, watch)
    except BaseException as error:  # whatever it is, the other ranks wait for this one
        watch.fail(ending_of(error))


def _job(request: Request, ranks: Ranks, stack: ExitStack) -> tuple[Job, Settings]:
    """The run that is asked for; the stack holds its folder.

    Rank 0 goes first, so that what is wrong with the options, the folder or the text is found, and told, by it alone. A
    run that goes on has the settings and the text that rank 0 finds in its folder.
    """
    saved: Saved | None = None
    lines: corpus.Corpus | None = None

    def first() -> bytes:
        nonlocal saved, lines
        if not request.resume:
            # The settings of a new run: its engine is the same in every step.
            engine = request.options["engine"]
            if engine == "auto":
                engine = "dataflow" if request.options["pipeline"] else "native"
            limit = parse_size(request.options["memory_budget"])
            settings = Settings(**{**request.options, "engine": engine, "memory_budget": limit})
        out = stack.enter_context(folder.held(request.out, request.resume))
        if request.resume:
            saved = checkpoint.read(out / CHECKPOINT)
            assert isinstance(saved.identity.settings, Settings)
            settings = saved.identity.settings.continued(_given(request))
        texts = []
        for given, kept in ((request.text, "text"), (request.validation, "validation_text")):
            before = getattr(saved.identity, kept) if saved else None
            texts.append(str(given.absolute()) if given is not None else before)
        lines = _loaded(texts, settings)
        return json.dumps({"settings": settings.as_dict(), "texts": texts, "out": str(out)}).encode()

    found = json.loads(ranks.from_first(first))
    settings, texts = Settings(**found["settings"]), found["texts"]
    if lines is None:
        lines = _loaded(texts, settings)
    ranks.check_same("options and text", repr((sorted(request.options.items()), lines.fingerprint)).encode())
    job = text.prepare(
        settings,
        lines,
        texts[0],
        Path(found["out"]),
        saved=saved,
        is_profiled=request.profile,
        ranks=ranks.by_layers() if settings.pipeline else ranks,
        validation_text=texts[1],
    )
    return job, settings


def _loaded(texts: Sequence[str | None], settings: Settings) -> corpus.Corpus:
    paths = [None if path is None else Path(path) for path in texts]
    return corpus.load(paths[0], settings.batch, settings.reading, paths[1])


def _with_enough(error: MemoryBudgetError, job: Job) -> MemoryBudgetError:
    """The error, with a budget in which the longest lines of the text were tried."""
    task, limit = job.task, job.memory_budget
    if limit is None or job.ranks.size > 1:
        return error
    longest = task.longest().arguments

    def run() -> None:
        task.value_and_grad(job.state.params, *longest)
        task.model.line_bits_of(job.state.params, *longest[:2])

    size = -(-enough(limit, run) // 1024)
    return MemoryBudgetError(
        f"--memory-budget: {limit} bytes are too little ({error.problem})",
        expected=f"--memory-budget {size}KiB or more: tried with the longest lines of this text",
        got=error.got,
        hint=f"--memory-budget {size}KiB, a smaller --batch or --hidden, or a smaller --line-limit",
    )


def _verified(job: Job, grads: Any, console: Console, as_json: bool) -> bytes:
    """Compare a gradient with JAX's and show it; raises `GradientMismatch` where they disagree."""
    comparison = compare_with_jax(job, grads)
    table = Table(title="The first gradient, against JAX", title_justify="left")
    for heading in ("parameter", "shape"):
        table.add_column(heading)
    for heading in ("largest error", "allowed"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for row in comparison.rows:
        mark = Text("agrees", style="green") if row.agrees else Text("differs", style="bold red")
        table.add_row(row.name, str(list(row.shape)), f"{row.error:.2e}", f"{row.allowed:.2e}", mark)
    console.print(table)
    if not comparison.agrees:
        if as_json:
            typer.echo(_nothing_trained(job).json())
        raise GradientMismatch(
            f"the gradient disagrees with JAX's: {comparison.worst}\n  nothing was trained",
            hint="with --precision float64 rounding disagrees less, a defect as much",
        )
    return b"agrees"


def _try_rates(job: Job, console: Console, as_json: bool) -> None:
    """Try learning rates, and print some of them with their losses; the run itself is not begun."""
    found = trainer.learning_rates(job, job.task.settings.transformation(1.0))
    if job.ranks.rank > 0:
        return
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2))
        return
    table = Table(title=f"{len(found.rates)} steps with a rising rate; nothing is written", title_justify="left")
    table.add_column("learning rate", justify="right")
    table.add_column(f"bits per {job.task.settings.tokens}, smoothed", justify="right")
    fastest = None if found.suggested is None else found.rates.index(found.suggested)
    for number, (rate, loss) in enumerate(zip(found.rates, found.losses, strict=True)):
        if number % 8 == 0 or number == fastest or number == len(found.rates) - 1:
            table.add_row(f"{rate:.2g}", f"{loss:.4f}", style="bold" if number == fastest else None)
    console.print(table)
    told = "It fell at no rate." if found.suggested is None else f"It falls fastest at {found.suggested:.2g}"
    console.print(f"{told}: try --learning-rate {found.suggested:.2g}" if found.suggested else told, highlight=False)


def sample_and_report(run: Path, prompt: str, temperature: float, count: int, seed: int, best: bool) -> None:
    """Print lines that the model of a run writes."""
    trained = text.load(run, best)
    for number in range(count):
        typer.echo(trained.sample(prompt, temperature, seed + number))


def evaluate_and_report(run: Path, file: Path, as_json: bool, best: bool) -> None:
    """Print the figures of a text under the model of a run."""
    figures = text.load(run, best).evaluate(file)
    if as_json:
        typer.echo(json.dumps(figures, indent=2))
        return
    typer.echo(
        f"{figures['bits_per_token']:.4f} bits per token, perplexity {figures['perplexity']:.4f}; "
        f"{figures['tokens']:,} tokens, of which the vocabulary lacks {figures['unknown']:,}"
    )


def _given(request: Request) -> dict[str, Any]:
    """The settings that were given for a run which has its own; "auto" is whatever engine that is."""
    given = {name: value for name, value in request.options.items() if name in request.given}
    if "memory_budget" in given:
        given["memory_budget"] = parse_size(given["memory_budget"])
    if given.get("engine") == "auto":
        del given["engine"]
    return given


def _headline(job: Job) -> str:
    s, c = job.task.settings, job.task.corpus
    shape = f"{s.layers} x {s.cell} of {s.hidden}" if s.layers > 1 else f"{s.cell} of {s.hidden}"
    start = f" from step {job.state.step}" if job.state.step else ""
    over = f" over {job.ranks.size} ranks" if job.ranks.size > 1 else ""
    if s.pipeline:
        over += f", layers on {', '.join(dict.fromkeys(job.task.model.places))}"
    return (
        f"Training {shape} on {len(c.train)} lines ({c.symbols} symbols), {s.batch} a step{over}, "
        f"{s.steps} steps{start}; {len(c.validation)} lines for validation. Results go to {job.out}"
    )


class _Rate(ProgressColumn):
    """Bits per character, characters per second and peak memory, from the task's fields."""

    def render(self, task: Any) -> Text:
        return Text(task.fields["figures"], style="cyan")


@contextmanager
def _progress(console: Console, job: Job) -> Iterator[trainer.OnStep]:
    """A progress bar; where the output is no terminal, a line for every tenth of the run."""
    bits: float | None = None
    characters, seconds, is_timed = 0.0, 0.0, False
    total = job.steps
    columns = (TextColumn("step"), MofNCompleteColumn(), BarColumn(bar_width=24), _Rate(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal or console.quiet) as progress:
        task = progress.add_task("", total=total, completed=job.state.step, figures="")

        def on_step(m: Step) -> None:
            nonlocal bits, characters, seconds, is_timed
            bits = m.loss if bits is None else bits + _WEIGHT * (m.loss - bits)
            # Code of the first step is forgotten as soon as there is another one.
            keep = 1.0 - _WEIGHT if m.is_timed == is_timed else 0.0
            characters, seconds, is_timed = keep * characters + m.count, keep * seconds + m.seconds, m.is_timed
            speed = characters / max(seconds, 1e-9)
            figures = f"{bits:.3f} bits/char  {speed:,.0f} chars/s  {_size(m.peak_memory_bytes)}"
            progress.update(task, completed=m.step, figures=figures)
            if not console.is_terminal and (m.step * 10 // total > (m.step - 1) * 10 // total):
                console.print(f"step {m.step}/{total}  {figures}", highlight=False)

        yield on_step


def _size(count: int | None) -> str:
    return "" if count is None else f"process peak {count / 2**20:,.0f} MiB"


def _print_summary(console: Console, job: Job, summary: Summary) -> None:
    kind = job.task.settings.tokens
    table = Table(title=f"{summary.steps} steps in {summary.seconds:.1f} s", title_justify="left")
    table.add_column(f"bits per {kind}")
    table.add_column("", justify="right")
    table.add_row("unigram entropy of the text", f"{summary.unigram_bits_per_char:.4f}")
    table.add_row("bigram entropy of the text", f"{summary.bigram_bits_per_char:.4f}")
    table.add_row("validation", f"{summary.validation_bits_per_char:.4f}", style="bold")
    console.print(table)
    console.print(
        f"{summary.characters_per_second:,.0f} characters per second, {_size(summary.peak_memory_bytes)}",
        highlight=False,
    )
    if not (job.out / PLOT).exists():
        console.print("No loss.png: it needs matplotlib (pip install -e '.[plot]')", highlight=False, markup=False)
    console.print("Lines that the model writes:")


def _nothing_trained(job: Job) -> Summary:
    return Summary(
        validation_bits_per_char=None,
        unigram_bits_per_char=job.task.levels()[0],
        bigram_bits_per_char=job.task.levels()[1],
        steps=job.state.step,
        seconds=job.state.seconds,
        characters_per_second=0.0,
        peak_memory_bytes=metrics.peak_memory_bytes(),
        verified=False,
    )
