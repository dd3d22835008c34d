"""A run's state on disk: one safetensors file, replaced as a whole, read with every doubt checked.

The tensors are the parameters (`params...`) and the optimiser's state (`optimiser...`); the metadata hold the format's
name, the settings, the text's fingerprint, and the figures since the last line of metrics.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ctrlgrad import tree
from ctrlgrad.errors import UserInputError
from ctrlgrad.train.settings import Settings

FORMAT = "ctrlgrad.train 1"


@dataclass(frozen=True, slots=True)
class State:
    """All that a step changes. `bits` and `characters` are sums since the last line of metrics."""

    step: int
    params: Any
    optimiser: Any
    bits: float = 0.0
    characters: int = 0
    total_characters: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Identity:
    """What a checkpoint must agree on with the run that continues it."""

    settings: Settings
    fingerprint: str
    verified: bool | None


def temporary(path: Path, writer: int | str) -> Path:
    """Where a process writes what is to replace a file."""
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
    named = _named({"params": state.params, "optimiser": state.optimiser})
    record = {
        "settings": identity.settings.as_dict(),
        "fingerprint": identity.fingerprint,
        "verified": identity.verified,
        "step": state.step,
        "bits": state.bits,
        "characters": state.characters,
        "total_characters": state.total_characters,
        "seconds": state.seconds,
    }
    # JSON writes a float with the digits that give the same float back.
    metadata = {"format": FORMAT, "run": json.dumps(record)}
    write_atomically(path, save({k: np.asarray(v, order="C") for k, v in named.items()}, metadata))


def read(path: Path, like: State, identity: Identity) -> tuple[State, Identity]:
    """The state in a file, with the structure, shapes and dtypes of `like`.

    Raises `UserInputError` for a file that is missing, truncated, of another program, or of another run; the result's
    identity is `identity` with what the file says about `verified`.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise UserInputError(
            "--resume: there is no checkpoint",
            expected=f"{path}",
            got="no such file",
            hint="leave out --resume to start a run, or name the folder of a run with --out",
        ) from None
    except OSError as error:
        raise UserInputError("--resume: the checkpoint cannot be read", got=f"{path}: {error.strerror}") from None
    metadata = _metadata(path, data)
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, str(error)) from None
    try:
        record = json.loads(metadata["run"])
        found = Identity(Settings(**record["settings"]), record["fingerprint"], record["verified"])
        state = State(
            int(record["step"]),
            like.params,
            like.optimiser,
            float(record["bits"]),
            int(record["characters"]),
            int(record["total_characters"]),
            float(record["seconds"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"its metadata are not those of a run ({error!r})") from None
    _check_same_run(path, found, identity)
    template = {"params": like.params, "optimiser": like.optimiser}
    expected = _named(template)
    for name in sorted(expected.keys() | tensors.keys()):
        wanted, got = (_described(tensors_of.get(name)) for tensors_of in (expected, tensors))
        if wanted != got:
            raise _damaged(path, f"tensor {name} is {got}, and should be {wanted}")
    _, treedef = tree.flatten(template)
    restored = tree.unflatten(treedef, [tensors[name] for name in expected])
    state = State(
        state.step,
        restored["params"],
        restored["optimiser"],
        state.bits,
        state.characters,
        state.total_characters,
        state.seconds,
    )
    return state, Identity(identity.settings, identity.fingerprint, found.verified)


def _metadata(path: Path, data: bytes) -> dict[str, str]:
    """The metadata of the file's header: a length in 8 bytes, then JSON."""
    try:
        size = int.from_bytes(data[:8], "little")
        if len(data) < 8 + size:
            raise ValueError(f"it ends after {len(data)} bytes")
        header = json.loads(data[8 : 8 + size])
        metadata = header.get("__metadata__", {})
    except (ValueError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"it is truncated or no safetensors file ({error})") from None
    if metadata.get("format") != FORMAT:
        raise UserInputError(
            "--resume: the checkpoint is not one of this program",
            expected=f"a safetensors file of format {FORMAT!r}",
            got=f"{path} of format {metadata.get('format')!r}",
            hint="name the folder of a run of `ctrlgrad train` with --out",
        )
    return dict(metadata)


def _check_same_run(path: Path, found: Identity, wanted: Identity) -> None:
    theirs, ours = found.settings.as_dict(), wanted.settings.as_dict()
    different = [name for name in ours if ours[name] != theirs[name]]
    if different:
        raise UserInputError(
            "--resume: the run in this folder has other settings",
            expected=", ".join(f"--{name} {theirs[name]}" for name in different) + f" (in {path})",
            got=", ".join(f"--{name} {ours[name]}" for name in different),
            hint="give the options the run was started with, or start another run in another --out",
        )
    if found.fingerprint != wanted.fingerprint:
        raise UserInputError(
            "--resume: the run in this folder was on another text",
            expected=f"the text with fingerprint {found.fingerprint[:12]} (in {path})",
            got=f"a text with fingerprint {wanted.fingerprint[:12]}",
            hint="give the same --text; the default text differs between versions of Python",
        )


def _damaged(path: Path, why: str) -> UserInputError:
    return UserInputError(
        "--resume: the checkpoint cannot be used",
        expected="a whole checkpoint of `ctrlgrad train`",
        got=f"{path}: {why}",
        hint="restore the file from a copy, or start another run in another --out",
    )


def _named(structure: Any) -> dict[str, np.ndarray]:
    leaves, treedef = tree.flatten(structure)
    paths = [".".join(str(key) for key in path) for path in treedef.paths()]
    return {name: np.asarray(leaf) for name, leaf in zip(paths, leaves, strict=True)}


def _described(array: np.ndarray | None) -> str:
    return "absent" if array is None else f"{array.dtype.name}{list(array.shape)}"
