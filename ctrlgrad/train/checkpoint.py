"""A run's state on disk: one safetensors file, replaced as a whole, read with every doubt checked.

The tensors are the parameters (`params...`) and the optimiser's state (`optimiser...`); the metadata hold the format's
name and version, the settings, the vocabulary, the text's path and fingerprint, and the figures since the last line of
metrics. A run of a user's own loss has the settings of its `Trainer` and neither text nor vocabulary.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from ctrlgrad import tree
from ctrlgrad.dtypes import bfloat16
from ctrlgrad.errors import UserInputError
from ctrlgrad.files import read_file
from ctrlgrad.train.corpus import TOKENS, Vocabulary
from ctrlgrad.train.settings import Settings

FORMAT = "ctrlgrad.train 2"
_DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(bfloat16),
    "C64": np.dtype(np.complex64),
    **{f"{kind}{8 * size}": np.dtype(f"{kind.lower()}{size}") for kind in "IU" for size in (1, 2, 4, 8)},
    "BOOL": np.dtype(np.bool_),
}


@dataclass(frozen=True, slots=True)
class State:
    """All that a step changes. `bits` and `characters` are sums since the last line of metrics: of the losses, each
    times its batch's count, and of the counts. `best` is the lowest validation figure so far, and `waited` how many
    validations there were since.

    `timed_characters` and `timed_seconds` are sums over the steps that tell how fast the run is: all but each process's
    first one, which compiles. `seconds` is the sum over all steps.
    """

    step: int
    params: Any
    optimiser: Any
    bits: float = 0.0
    characters: int = 0
    timed_characters: int = 0
    timed_seconds: float = 0.0
    seconds: float = 0.0
    best: float = math.inf
    waited: int = 0


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of the run that a checkpoint belongs to. `text` is the path of its text, None for the default text.

    `settings` are those of a run on a text, or the plain numbers of a user's own.
    """

    settings: Settings | Mapping[str, Any]
    fingerprint: str
    verified: bool | None
    text: str | None = None
    vocabulary: Vocabulary | None = None
    validation_text: str | None = None

    @property
    def steps(self) -> int:
        return self.settings.steps if isinstance(self.settings, Settings) else int(self.settings["steps"])


def temporary(path: Path, writer: int | str) -> Path:
    """Path at which a process writes a file's replacement."""
    return path.with_name(f".{path.name}.{writer}")


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file as a whole: after a crash at any moment it holds the old bytes or the new ones."""
    new = temporary(path, os.getpid())
    try:
        with open(new, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def write(path: Path, state: State, identity: Identity) -> None:
    tensors = named({"params": state.params, "optimiser": state.optimiser})
    own = not isinstance(identity.settings, Settings)
    record = {
        "task": "own" if own else "text",
        "settings": dict(identity.settings) if isinstance(identity.settings, Mapping) else identity.settings.as_dict(),
        "fingerprint": identity.fingerprint,
        "verified": identity.verified,
        "text": identity.text,
        "validation_text": identity.validation_text,
        "vocabulary": None if identity.vocabulary is None else asdict(identity.vocabulary),
        **{name: getattr(state, name) for name in _FIGURES},
    }
    record["best"] = None if math.isinf(state.best) else state.best
    # JSON writes a float with the digits that give the same float back.
    metadata = {"format": FORMAT, "run": json.dumps(record)}
    write_atomically(path, save({k: np.asarray(v, order="C") for k, v in tensors.items()}, metadata))


@dataclass(frozen=True)
class Saved:
    """A checkpoint whose metadata have been checked; `state` checks its tensors against a model."""

    path: Path
    identity: Identity
    # The counters of a `State`, by their names.
    figures: Mapping[str, Any]
    tensors: Mapping[str, np.ndarray]
    # The option or argument that errors name.
    asked: str

    def check_text(self, fingerprint: str) -> None:
        """Raises `UserInputError` for another text than the run's."""
        if self.identity.fingerprint != fingerprint:
            raise UserInputError(
                "--resume: the run in this folder was on another text",
                expected=f"the text with fingerprint {self.identity.fingerprint[:12]} (in {self.path})",
                got=f"a text with fingerprint {fingerprint[:12]}",
                hint="give the same text with --text; the default text differs between versions of Python",
            )

    def params(self, like: Any) -> Any:
        """The parameters alone, with the structure, shapes and dtypes of `like`."""
        return self._restored({"params": like})["params"]

    def state(self, like: State) -> State:
        """The state, with the structure, shapes and dtypes of `like`; raises `UserInputError` where it is not one."""
        restored = self._restored({"params": like.params, "optimiser": like.optimiser})
        return State(params=restored["params"], optimiser=restored["optimiser"], **self.figures)

    def _restored(self, template: Any) -> Any:
        expected = named(template)
        found = {name: x for name, x in self.tensors.items() if name.partition(".")[0] in template}
        for name in sorted(expected.keys() | found.keys()):
            wanted, got = (_described(tensors_of.get(name)) for tensors_of in (expected, found))
            if wanted != got:
                why = f"tensor {name} is {got}, and should be {wanted}"
                raise _damaged(self.path, why, self.asked, self.identity.settings)
            if not np.isfinite(np.asarray(self.tensors[name], np.float64)).all():
                raise _damaged(self.path, f"tensor {name} holds NaN or infinities", self.asked)
            if name.endswith(".count") and (self.tensors[name] != self.figures["step"]).any():
                why = f"tensor {name} counts other steps than {self.figures['step']}"
                raise _damaged(self.path, why, self.asked)
        return tree.unflatten(tree.structure(template), [found[name] for name in expected])


def read(path: Path, asked: str = "--resume") -> Saved:
    """Contents of a file. Raises `UserInputError` for one that is missing, truncated or of another program.

    `asked` is the option or argument that errors name.
    """
    try:
        data = read_file(path)
    except (FileNotFoundError, NotADirectoryError):
        raise UserInputError(
            f"{asked}: there is no checkpoint",
            expected=f"{path}",
            got="no such file",
            hint="leave out --resume to start a run, or name the folder of a run with --out"
            if asked == "--resume"
            else "name the folder of a run",
        ) from None
    except OSError as error:
        raise UserInputError(
            f"{asked}: the checkpoint cannot be read", got=f"{path}: {error.strerror}", hint="check its permissions"
        ) from None
    metadata = _metadata(path, data, asked)
    try:
        # The library's loader for NumPy knows no bfloat16.
        tensors = {
            name: np.frombuffer(raw["data"], _DTYPES[raw["dtype"]]).reshape(raw["shape"])
            for name, raw in deserialize(data)  # type: ignore[no-untyped-call]
        }
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, str(error), asked) from None
    try:
        record = json.loads(metadata["run"])
        identity = _identity(record, len(data))
        figures = {name: _figure(record, name, kind) for name, kind in _FIGURES.items()}
        if figures["step"] > identity.steps:
            raise ValueError(f"step {figures['step']} of {identity.steps}")
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        # The first line: an error about an option tells how to give it, which was not done.
        why = str(error).partition("\n")[0] if isinstance(error, ValueError) else repr(error)
        raise _damaged(path, f"its metadata are not those of a run ({why})", asked) from None
    return Saved(path, identity, figures, tensors, asked)


# The figures of a state, and their types.
_FIGURES: dict[str, type[int] | type[float]] = {
    "step": int,
    "bits": float,
    "characters": int,
    "timed_characters": int,
    "timed_seconds": float,
    "seconds": float,
    "best": float,
    "waited": int,
}


def _figure(record: Mapping[str, Any], name: str, kind: type[int] | type[float]) -> int | float:
    value = record[name]
    if name == "best" and value is None:
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | kind) or not 0 <= value < math.inf:
        raise ValueError(f"{name} is {_short(value)}")
    return kind(value)


def _identity(record: Mapping[str, Any], file_size: int) -> Identity:
    settings = dict(record["settings"])
    if record["task"] == "own":
        if type(settings["steps"]) is not int:
            raise ValueError(f"steps is {_short(settings['steps'])}")
        return Identity(settings, str(record["fingerprint"]), None)
    kinds = {name: get_args(hint) or (hint,) for name, hint in get_type_hints(Settings).items()}
    for name, value in settings.items():
        # The exact type: True is an int, too.
        if type(value) not in kinds[name] or (name == "memory_budget" and value is not None and value < 0):
            raise ValueError(f"the setting {name} is {_short(value)}")
    found = Settings(**settings)
    if found.hidden * found.hidden * found.layers > file_size:
        # Before a model is made of such a size.
        raise ValueError(f"{found.layers} layers of {found.hidden} do not fit into {file_size} bytes")
    texts = record["text"], record["validation_text"]
    vocabulary = Vocabulary(record["vocabulary"]["kind"], tuple(record["vocabulary"]["entries"]))
    identity = Identity(found, record["fingerprint"], record["verified"], texts[0], vocabulary, texts[1])
    if not isinstance(identity.fingerprint, str) or any(not isinstance(text, str | None) for text in texts):
        raise ValueError("the text is not named")
    if vocabulary.kind not in TOKENS or any(not isinstance(entry, str) for entry in vocabulary.entries):
        raise ValueError("the vocabulary is no list of tokens")
    if not isinstance(identity.verified, bool | None):
        raise ValueError(f"verified is {_short(identity.verified)}")
    return identity


def _short(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 200:
        return f"an int of {value.bit_length()} bits"
    return repr(value)[:60]


def _metadata(path: Path, data: bytes, asked: str) -> dict[str, Any]:
    """The metadata of the file's header: a length in 8 bytes, then JSON."""
    try:
        size = int.from_bytes(data[:8], "little")
        if len(data) < 8 + size:
            raise ValueError(f"it ends after {len(data)} bytes")
        header = json.loads(data[8 : 8 + size])
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"it is truncated or no safetensors file ({error})", asked) from None
    metadata = header.get("__metadata__", {}) if isinstance(header, dict) else None
    if not isinstance(metadata, dict):
        raise _damaged(path, "its metadata are no object", asked)
    if metadata.get("format") != FORMAT:
        raise UserInputError(
            f"{asked}: the checkpoint is not one of this program",
            expected=f"a safetensors file of format {FORMAT!r}",
            got=f"{path} of format {_short(metadata.get('format'))}",
            hint="name the folder of a run of `ctrlgrad train`" + " with --out" * (asked == "--resume"),
        )
    return metadata


def _damaged(path: Path, why: str, asked: str, settings: Any = None) -> UserInputError:
    restored = "give the params and the optimiser of that run" if isinstance(settings, Mapping) else None
    return UserInputError(
        f"{asked}: the checkpoint cannot be used",
        expected="a whole checkpoint of `ctrlgrad train`",
        got=f"{path}: {why}",
        hint=f"{restored or 'restore the file from a copy'}, or start another run in another --out"
        if asked == "--resume"
        else "restore the file from a copy, or name another run",
    )


def named(structure: Any) -> dict[str, np.ndarray]:
    leaves, treedef = tree.flatten(structure)
    # A named tuple's entry is named by its field.
    paths = [".".join(str(getattr(entry, "field", entry.entry)) for entry in path) for path in treedef.accessors()]
    return {name: np.asarray(leaf) for name, leaf in zip(paths, leaves, strict=True)}


def _described(array: np.ndarray | None) -> str:
    return "absent" if array is None else f"{array.dtype.name}{list(array.shape)}"
