"""ONNX's node tests, run on this library: `python -m tests.onnx_suite`, or `python -m tests.onnx_suite lstm gru loop`.

The tests come with the package onnx: models of one node each, or of its expansion, with inputs, results and tolerances.
A model is refused where `from_onnx` says by name which operator or element type it does not have; anything else that
is not as ONNX says has failed.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import pkgutil
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.backend.test.case.node as of_nodes

import ctrlgrad as cg
from ctrlgrad.errors import UnsupportedPrimitiveError

# Where ONNX expects a zero these have the rounding of float32, of sums up to 450, for which the cases do not allow.
ROUGH = {"test_dft": 1e-5}


def modules() -> list[str]:
    """The families of tests."""
    return sorted(m.name for m in pkgutil.iter_modules(of_nodes.__path__) if not m.name.startswith("_"))


def cases(names: Sequence[str]) -> list[Any]:
    """The tests of these families."""
    found: list[Any] = of_nodes._NodeTestCases
    chosen = []
    for name in names:
        before = len(found)
        with warnings.catch_warnings():
            # Warnings of ONNX's own computations of the results.
            warnings.simplefilter("ignore")
            module = importlib.import_module(f"{of_nodes.__name__}.{name}")
        # A module makes its tests when it is imported.
        module.__dict__.setdefault("its_cases", found[before:])
        chosen += module.its_cases
    return chosen


def check(case: Any) -> None:
    """Run a test; raises what `from_onnx` raises, and an `AssertionError` for other results than ONNX's."""
    fn = cg.from_onnx(case.model)
    for inputs, outputs in case.data_sets:
        found = fn(*map(_plain, inputs))
        found = found if isinstance(found, tuple) else (found,)
        assert len(found) == len(outputs)
        for got, wanted in zip(found, map(_plain, outputs), strict=True):
            _compare(got, wanted, case)


def _plain(x: Any) -> Any:
    if isinstance(x, onnx.TensorProto):
        return onnx.numpy_helper.to_array(x)
    return [_plain(y) for y in x] if isinstance(x, list | tuple) else x


def _compare(got: Any, wanted: Any, case: Any) -> None:
    if wanted is None:
        assert got is None
    elif isinstance(wanted, list):
        assert isinstance(got, list) and len(got) == len(wanted)
        for a, b in zip(got, wanted, strict=True):
            _compare(a, b, case)
    else:
        wanted = np.asarray(wanted)
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), (got.dtype, got.shape)
        np.testing.assert_allclose(got, wanted, rtol=case.rtol, atol=ROUGH.get(case.name[:8], case.atol))


def outcomes(chosen: Sequence[Any]) -> Iterator[tuple[str, str, str]]:
    """Of each test its name, what became of it, and why."""
    for case in chosen:
        try:
            check(case)
        except UnsupportedPrimitiveError as error:
            yield case.name, "refused by name", str(error).splitlines()[0].removeprefix("from_onnx: ")
        except Exception as error:
            yield case.name, "failed", f"{type(error).__name__}: {error}"
        else:
            yield case.name, "passed", ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", help="names of onnx.backend.test.case.node; all of them by default")
    parser.add_argument("--engine", default="reference")
    given = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    reasons: collections.Counter[str] = collections.Counter()
    with cg.options(engine=given.engine):
        for name, outcome, reason in outcomes(cases(given.families or modules())):
            counts[outcome] += 1
            if outcome == "failed":
                print(f"{name}: {reason}\n")
            elif reason:
                reasons[re.sub(r"\s+", " ", reason)] += 1
    for reason, n in reasons.most_common():
        print(f"{n:4} {reason}")
    print(
        ", ".join(f"{counts[word]} {word}" for word in ("passed", "refused by name", "failed")),
        f"(onnx {onnx.__version__})",
    )


if __name__ == "__main__":
    main()
