"""The API reference, made from signatures and docstrings: a page per public module in `docs/reference`.

python docs/build_api.py
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import ctrlgrad

FOLDER = Path(__file__).resolve().parent / "reference"
SECTION = re.compile(r"^(Args|Returns|Raises[^:]*):(.*)$")
# An entry of a section begins at the section's own indentation; what is indented further continues it.
ENTRY = re.compile(r"^    (\S.*)$")


def modules() -> list[tuple[str, ModuleType]]:
    """The public modules by the names under which they are used."""
    top: list[tuple[str, ModuleType]] = [("ctrlgrad", ctrlgrad)]
    parts = [(f"ctrlgrad.{name}", getattr(ctrlgrad, name)) for name in sorted(ctrlgrad.__all__)]
    top += [(name, part) for name, part in parts if isinstance(part, ModuleType)]
    parts = [(f"ctrlgrad.numpy.{name}", getattr(ctrlgrad.numpy, name)) for name in ("fft", "linalg")]
    return top + parts + [(f"ctrlgrad.scipy.{name}", getattr(ctrlgrad.scipy, name)) for name in ("linalg", "special")]


def members(module: ModuleType) -> list[tuple[str, Any]]:
    """The public names of a module: `__all__`, or what it defines itself. No modules among them."""
    listed = getattr(module, "__all__", None)
    if listed is None:
        listed = [
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
        ]
    found = [(name, getattr(module, name)) for name in sorted(listed)]
    return [(name, value) for name, value in found if not isinstance(value, ModuleType)]


def is_documented(value: Any) -> bool:
    """True if a name has an entry of its own: constants, dtypes and NumPy's own functions are only listed."""
    return callable(value) and (getattr(value, "__module__", None) or "").startswith("ctrlgrad")


def signature(value: Any) -> list[str]:
    """The parameters with their annotations and defaults, as they stand in the source."""
    own = inspect.isclass(value) and any(
        "__init__" in vars(base) for base in value.__mro__[:-1] if base.__module__.startswith("ctrlgrad")
    )
    if inspect.isclass(value) and (issubclass(value, BaseException) or not own):
        return []
    shown: list[str] = []
    before: Any = None
    for name, parameter in inspect.signature(value).parameters.items():
        kind = parameter.kind
        if before == parameter.POSITIONAL_ONLY != kind:
            shown.append("/")
        if kind == parameter.KEYWORD_ONLY and before not in (kind, parameter.VAR_POSITIONAL):
            shown.append("*")
        if name != "self":
            shown.append(_parameter(parameter))
        before = kind
    return shown + ["/"] * (before == inspect.Parameter.POSITIONAL_ONLY)


def call(name: str, value: Any) -> str:
    """Code block with a function's signature; a long one has a line per parameter."""
    parameters = signature(value)
    line = f"{name}({', '.join(parameters)})"
    if len(line) > 88:
        line = "\n".join([f"{name}(", *(f"    {parameter}," for parameter in parameters), ")"])
    return f"```python\n{line}\n```"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = (parameter.kind == parameter.VAR_POSITIONAL) + 2 * (parameter.kind == parameter.VAR_KEYWORD)
    text: str = "*" * stars + parameter.name
    annotation = parameter.annotation
    if isinstance(annotation, str) and annotation != "Any":
        text += f": {annotation}"
    if parameter.default is parameter.empty:
        return text
    default = parameter.default
    if type(default) is object:  # a mark for an argument that was left out
        shown = "..."
    else:
        shown = f"numpy.{default.__name__}" if isinstance(default, type) else repr(default)
    return f"{text} = {shown}" if ": " in text else f"{text}={shown}"


def markdown(docstring: str) -> str:
    """A docstring as Markdown: sections become lists, examples and formulas blocks of code."""
    blocks = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(docstring)):
        lines = paragraph.splitlines()
        section = SECTION.match(lines[0])
        if lines[0].lstrip().startswith(">>>"):
            blocks.append("\n".join(["```pycon", *inspect.cleandoc(paragraph).splitlines(), "```"]))
        elif section and section[2]:
            blocks.append("\n".join([f"**{section[1]}:**{section[2]}", *(line.strip() for line in lines[1:])]))
        elif section and section[1] == "Returns":
            blocks.append("\n".join(["**Returns:**", *(line.strip() for line in lines[1:])]))
        elif section:
            blocks += [f"**{section[1]}:**", _entries(lines[1:])]
        elif all(line.startswith("    ") for line in lines):
            blocks.append("\n".join(["```text", *(line[4:] for line in lines), "```"]))
        else:
            blocks.append(paragraph)
    return "\n\n".join(block for block in blocks if block)


def _entries(lines: list[str]) -> str:
    """`name: text` becomes a list entry, however many lines it goes on for."""
    entries: list[str] = []
    for line in lines:
        begins = ENTRY.match(line)
        if begins or not entries:
            entries.append(line.strip())
        else:
            entries[-1] += "\n  " + line.strip()
    named = (re.sub(r"^([\w, *]+): ", r"`\1`: ", entry) for entry in entries)
    return "\n".join(f"- {entry}" for entry in named)


def methods(value: Any) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class that say what they do."""
    if not inspect.isclass(value) or issubclass(value, BaseException):
        return
    for name, method in sorted(vars(value).items()):
        if not name.startswith("_") and isinstance(method, FunctionType | property) and method.__doc__:
            yield name, method


def entry(name: str, value: Any) -> Iterator[str]:
    """A function or a class with its methods."""
    # Markdown takes two underscores at both ends for bold.
    yield "## " + name.replace("__", r"\_\_")
    if not (inspect.isclass(value) and not signature(value)):
        yield call(name, value)
    yield markdown(value.__doc__ or "")
    for method_name, method in methods(value):
        yield f"### {name}.{method_name}"
        if not isinstance(method, property):
            yield call(method_name, method)
        yield markdown(method.__doc__)


def page(name: str, module: ModuleType) -> Iterator[str]:
    """The page of a module, block by block."""
    found = members(module)
    yield f"# {name}"
    yield markdown(module.__doc__ or "")
    plain = [f"`{label}`" for label, value in found if not is_documented(value)]
    if plain:
        yield f"NumPy's own: {', '.join(plain)}."
    labels = {label for label, _ in found}
    for label, value in found:
        if not is_documented(value):
            continue
        own = getattr(value, "__name__", label)
        if own != label and own in labels and getattr(module, own) is value:
            yield f"## {label}"
            yield f"Another name of `{own}`."
        else:
            yield from entry(label, value)


# Names by the task for which a reader looks them up; the names of `ctrlgrad` itself, all of them.
TASKS = (
    (
        "Loops and branches",
        "while_loop cond fori_loop scan map switch case associative_scan foldl foldr TensorArray unknown_dims",
    ),
    (
        "Derivatives",
        (
            "grad value_and_grad vjp jvp jacobian jacrev jacfwd hessian linearize linear_transpose stop_gradient "
            "check_grads"
        ),
    ),
    (
        "Derivatives of your own",
        "custom_vjp custom_jvp custom_gradient custom_root custom_linear_solve closure_convert",
    ),
    ("Compiling and batching", "function jit vmap custom_vmap eval_shape options device TensorSpec Function"),
    ("Memory", "checkpoint remat checkpoint_policies"),
    ("Other frameworks", "from_jax to_jax from_torch to_torch from_onnx pure_callback"),
    ("Types and errors", "Array DeviceArray CtrlgradError GradientMismatch"),
)


def summary(value: Any) -> str:
    """Return the first sentence of a docstring, up to a colon or semicolon that is not code."""
    first = " ".join(re.split(r"\n\s*\n", inspect.cleandoc(value.__doc__ or ""))[0].split())
    sentence = re.match(r"(?:`[^`]*`|[^`.:;]|[.:;](?=\S))*", first)
    assert sentence
    return sentence[0] + "."


def tasks() -> Iterator[str]:
    """Tables of the names of `ctrlgrad`, task by task; a name without a task fails."""
    found = {name for name, value in members(ctrlgrad) if is_documented(value)}
    grouped = [name for _, names in TASKS for name in names.split()]
    if sorted(grouped) != sorted(found):
        raise ValueError(f"TASKS differs from the names of ctrlgrad: {sorted(found ^ set(grouped))}")
    for task, names in TASKS:
        yield f"## {task}"
        rows = [(name, getattr(ctrlgrad, name)) for name in names.split()]
        lines = [f"| [`{name}`](ctrlgrad.md#{name.lower()}) | {summary(value)} |" for name, value in rows]
        yield "\n".join(["| name | summary |", "| --- | --- |", *lines])


def index() -> Iterator[str]:
    """The page that lists names by task, and the modules."""
    yield "# Reference"
    yield (
        "The names of `ctrlgrad` by task, then a page for each public module. `python docs/build_api.py` makes them\n"
        "from the docstrings. The examples run as doctests, after\n"
        "`import numpy as np, ctrlgrad as cg, ctrlgrad.numpy as cnp`.\n\n"
        "- [Every operation](../operations.md), with its derivative rules and dtypes.\n"
        "- What ctrlgrad has of [JAX's names](../jax_names.md), [JAX's primitives](../jax_primitives.md),\n"
        "  [ONNX's operators](../onnx_operators.md) and [PyTorch's operators](../torch_operators.md)."
    )
    yield from tasks()
    yield "## Modules"
    lines = [f"| [{name}]({name}.md) | {len(members(module))} | {summary(module)} |" for name, module in modules()]
    yield "\n".join(["| module | names | summary |", "| --- | --- | --- |", *lines])
    inside = [name for name, _ in modules()]
    further = ["../operations", "../jax_names", "../jax_primitives", "../onnx_operators", "../torch_operators"]
    yield "\n".join(["```{toctree}", ":hidden:", "", *inside, *further, "```"])


def pages() -> dict[str, str]:
    """The text of every page, by the name of its file."""
    blocks = {"index.md": index(), **{f"{name}.md": page(name, module) for name, module in modules()}}
    return {name: "\n\n".join(b.strip("\n") for b in page if b) + "\n" for name, page in blocks.items()}


def write() -> None:
    """Put the pages into the folder, and take away those of modules that are no more."""
    FOLDER.mkdir(exist_ok=True)
    fresh = pages()
    for old in FOLDER.glob("*.md"):
        if old.name not in fresh:
            old.unlink()
    for name, text in fresh.items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    write()
