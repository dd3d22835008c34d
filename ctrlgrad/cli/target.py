"""`FILE.py:FUNCTION` on the command line: the function of a user's file, and the example arguments beside it."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ctrlgrad.errors import CtrlgradError, UserInputError
from ctrlgrad.files import open_file

ARGUMENTS = "example_args"


@dataclass(frozen=True)
class Target:
    """A function of a file; `command` is the subcommand that errors name."""

    command: str
    path: Path
    name: str
    module: ModuleType
    fn: Callable[..., Any]

    def example_args(self, purpose: str) -> tuple[Any, ...]:
        """Result of the file's `example_args()`; an error that names the `purpose` where there is none."""
        make = getattr(self.module, ARGUMENTS, None)
        arguments = self.guarded(f"calling {ARGUMENTS}", make) if callable(make) else None
        if not isinstance(arguments, tuple):
            got = "no such function" if make is None else f"{type(arguments).__name__} from {ARGUMENTS}()"
            raise UserInputError(
                f"{self.command}: arguments are needed{purpose}",
                expected=f"a function {ARGUMENTS}() in {self.path} that returns a tuple of arguments",
                got=got,
                hint=f"def {ARGUMENTS}(): return (np.float64(2.0),)",
            )
        return arguments

    def guarded(self, what: str, action: Callable[[], Any]) -> Any:
        """Run the user's code; what it raises becomes an error that names his line."""
        return _guarded(self.command, self.path, what, action)


def load_target(command: str, text: str) -> Target:
    """The function that `text` names; raises `UserInputError` where it cannot be used."""
    path, name = _split(command, text)
    module = _load(command, path)
    fn = getattr(module, name, None)
    if not callable(fn):
        functions = [
            k for k, v in vars(module).items() if callable(v) and getattr(v, "__module__", None) == module.__name__
        ]
        raise UserInputError(
            f"{command}: there is no function {name!r} in the file",
            expected=" or ".join(n for n in functions if n != ARGUMENTS) or "a function at the top level of the file",
            got=text,
        )
    return Target(command, path, name, module, fn)


def _split(command: str, text: str) -> tuple[Path, str]:
    file, colon, name = text.rpartition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        raise UserInputError(
            f"{command}: the target is not understood",
            expected="FILE.py:FUNCTION, such as programs.py:newton",
            got=text,
        )
    path = Path(file)
    try:
        open_file(path).close()
    except OSError as error:
        what = "there is no such file" if isinstance(error, FileNotFoundError) else "the file cannot be read"
        raise UserInputError(f"{command}: {what}", got=f"{path}: {error.strerror}", hint="check the path") from None
    return path, name


def _load(command: str, path: Path) -> ModuleType:
    """The file as a module under its own name; what lies beside it can be imported, as when it is run."""
    name = f"ctrlgrad_{command}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    execute = spec.loader.exec_module
    try:
        _guarded(command, path, "loading the file", lambda: execute(module))
    finally:
        sys.path.pop(0)
    return module


def _guarded(command: str, path: Path, what: str, action: Callable[[], Any]) -> Any:
    try:
        return action()
    except (CtrlgradError, KeyboardInterrupt):
        raise
    except BaseException as error:  # the user's code may raise anything, SystemExit among it
        lines = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).resolve() == path.resolve()]
        if isinstance(error, SyntaxError):
            source = f"{error.filename}:{error.lineno}"
        else:
            source = f"{lines[-1].filename}:{lines[-1].lineno} in {lines[-1].name}" if lines else str(path)
        raise UserInputError(
            f"{command}: {what} failed", source=source, got=f"{type(error).__name__}: {error}"
        ) from error
