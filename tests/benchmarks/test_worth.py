"""The table of `docs/performance.md`: a row for each pass, with a benchmark whose plan the pass changes."""

from __future__ import annotations

import pytest

from benchmarks import worth
from benchmarks.worth import PAGE, SHOWN, by_name, names_of_passes, plan_text, shown_rows


def test_the_table_has_a_row_for_each_pass() -> None:
    assert list(shown_rows(PAGE.read_text(encoding="utf-8"))) == names_of_passes()


def test_the_rows_name_the_benchmarks_that_are_measured() -> None:
    assert shown_rows(PAGE.read_text(encoding="utf-8")) == SHOWN


@pytest.mark.parametrize("name", SHOWN)
def test_a_pass_changes_the_plan_of_its_benchmark(name: str) -> None:
    case = by_name()[SHOWN[name]]
    assert plan_text(case) != plan_text(case, name)


def test_a_program_without_a_pass_computes_the_same() -> None:
    (entry,) = [e for e in by_name()["call-overhead"].entries if e.system == "ctrlgrad"]
    found = []
    for names in ([], ["merge_common"]):
        with worth.without(*names):
            program = worth.built(entry.program, dict(entry.arguments))
            found.append({k: x.tolist() for k, x in program.read(program.step()).items()})
    assert found[0] == found[1]
