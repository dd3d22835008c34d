"""Division of the tests: the short suite, which is the README's command, and the rest, which runs in CI besides.

`pytest` runs the short suite: each mechanism on each engine once. `pytest --suite rest` runs what that leaves out, and
`pytest --suite whole` both. A file, a folder, a test or a word (`-k`) that is named on the command line runs whole.

Left out of the short suite are

- the files and tests of `CI_ONLY`, each with the reason;
- of a test with many points (`parametrize`), all but `MOST`, or as many as it has engines: these have each value of
  each parameter once, as far as they go, and are chosen by the names of the points. `EVERY_POINT` lists tests that
  keep all.

Points that are marked `long` are in neither (`instruments.tables`).
"""

from __future__ import annotations

import fnmatch
import itertools
import re
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

SUITES = ("short", "rest", "whole")

# Points of a test in the short suite.
MOST = 3

# Reason -> files and tests, `file::test`, below `tests`; `*` stands for any text.
CI_ONLY: dict[str, tuple[str, ...]] = {
    "a card is needed: named on a machine that has one": ("gpu/*",),
    "CUDA in detail, each form of loop in lists of launches: test_prepared.py has one of each kind": (
        "cuda/test_host_parts.py",
        "cuda/test_prepared_*.py",
        "cuda/test_walker.py",
    ),
    "what CuPy, cuBLAS, the driver and the stand-in are asked, call by call": (
        "cuda/test_cupy_*.py",
        "cuda/test_graph_calls.py",
        "cuda/test_kept_graphs.py",
        "cuda/test_recorded.py",
        "cuda/test_stand_in_memory.py",
        "dataflow/test_cuda_copies.py",
        "memory/test_cuda_fake.py",
    ),
    "tables of op types that ask each engine the same: the reference engine has its own, machine code a few points": (
        "cuda/test_op_types.py",
        "cuda/test_places.py",
        "dataflow/test_one_device.py::test_op_*",
    ),
    "a judge is judged, by mutants of what it judges": (
        "cuda/test_order.py",
        "cuda/test_waits.py",
        "plan/test_mutants*.py",
        "plan/test_roles.py",
        "test_conditioning.py",
    ),
    "campaigns of random programs: test_random_programs.py draws the same for the reference engine": (
        "*/test_random_programs.py",
        "cuda/test_agreement.py::test_every_way_to_run_a_loop_is_met",
        "dataflow/test_degenerate_programs.py",
        "memory/test_manager_random.py",
        "mpi/test_dataflow_ranks.py::test_random_programs_and_their_gradients",
        "native/test_agreement.py::test_random_programs",
        "native/test_size_sweep.py",
        "native/test_thresholds.py",
        "passes/test_random_layers.py",
        "plan/test_checker.py::test_*random*",
        "plan/test_machine.py::test_*random*",
    ),
    "long runs and large programs, where shorter tests of the same file prove the same in small": (
        "batching/test_against_jax.py::test_a_gradient_of_a_loop_is_taken_after_its_function_is_batched",
        "batching/test_vmap.py::test_an_array_that_outgrows_its_capacity",
        "cuda/test_budgets.py::test_a_long_sequence_has_the_same_bits",
        "cuda/test_budgets.py::test_loops_over_chunks_inside_loops_over_chunks",
        "cuda/test_budgets.py::test_recomputation_without_a_budget",
        "frontend/test_whole_bases.py::test_functions_of_the_complement_have_derivatives_*",
        "gradients/test_stack_lengths.py::test_lengths_in_the_corpus",
        "gradients/test_stack_lengths.py::test_mistakes_are_found",
        "interop/test_to_jax.py::test_a_data_dependent_loop_has_derivatives_of_every_mode_and_order",
        "memory/test_cost_of_a_block.py",
        "memory/test_loops_under_a_budget.py::test_a_long_sequence_has_the_same_bits",
        "memory/test_pullbacks.py::test_several_stacks_share_what_a_budget_has_room_for",
        "memory/test_recompute.py::test_memory_grows_with_the_square_root_*",
        "memory/test_recompute.py::test_states_leave_room_for_the_runs_between_them",
        "memory/test_smallest_budgets.py::test_a_budget_that_is_too_small_*",
        "memory/test_smallest_budgets.py::test_a_plan_finds_the_least_budget_of_a_model",
        "modes/test_unbounded_loops.py::test_*hessian*",
        "modes/test_unbounded_loops.py::test_third_order",
        "native/test_factors.py::test_a_gaussian_process_*",
        "native/test_fourier.py::test_sizes_beside_the_work_of_a_thread",
        "native/test_products.py::test_other_widths_of_vectors_and_masks_give_the_same",
        "native/test_ragged_rows.py::test_gradients_are_those_of_jax_unrolled",
        "native/test_sorting.py::test_the_largest_of_each_row",
        "plan/test_arrays_that_grow.py::test_an_iteration_costs_rows",
        "test_nesting_depth.py::test_a_nest_that_is_too_deep_*",
        "test_random_programs.py::test_random_programs",
    ),
    "every interleaving, every fault": (
        "memory/test_manager_faults.py",
        "memory/test_profile_intervals.py",
        "memory/test_protocol.py",
    ),
    "further primitives, operators and versions of what is read from elsewhere": (
        "interop/test_batched_solvers.py",
        "interop/test_factors.py",
        "interop/test_further_primitives.py",
        "interop/test_meanings_of_jax.py",
        "interop/test_onnx_*.py",
        "interop/test_rules_in_transforms.py::test_higher_derivatives_of_inexact_forward_rules_*",
        "interop/test_rules_of_primitives.py::test_a_pallas_kernel_*",
        "interop/test_rules_of_primitives.py::test_a_primitive_without_an_entry_*",
        "interop/test_versions_of_jax.py",
        "interop/test_windows_outside.py",
        "verify/test_jax_translation.py::test_ops_with_sizes_agree_when_unrolled",
        "verify/test_jax_translation.py::test_sizes_that_change_are_unrolled",
    ),
    "other processes are started, killed and watched": (
        "memory/test_spill_processes.py",
        "mpi/test_watch.py",
        "test_import.py::test_a_plan_from_the_cache_loads_what_its_code_calls",
    ),
    "programs beside the library: benchmarks, ports, the command's longer runs": (
        "benchmarks/*",
        "cli/test_demo.py",
        "cli/test_train_*.py",
        "cuda/test_benchmark.py",
        "ports/*",
    ),
    "pages, examples and lists of names, read and run": (
        "interop/test_pages.py",
        "memory/test_profile.py::test_a_browser_draws_the_page",
        "test_api_reference.py",
        "test_doctests.py",
        "test_examples.py",
        "test_hints.py::test_every_name_in_an_error_*",
        "test_jax_names.py",
        "test_notebooks.py",
        "test_pages.py",
    ),
    "all tests are collected, several times": ("test_suites.py::test_every_*", "test_suites.py::test_named_files_*"),
}

# Reason -> tests that keep all of their points: each is a mechanism of its own.
EVERY_POINT: dict[str, tuple[str, ...]] = {
    "the corpus once on each engine, and its derivatives": (
        "cuda/test_agreement.py::test_corpus",
        "dataflow/test_one_device.py::test_corpus",
        "native/test_agreement.py::test_corpus",
        "test_corpus.py::test_derivatives",
        "test_corpus.py::test_value_is_that_of_the_python_twin",
    ),
    "each op on the reference engine and by rows, and its derivative": (
        "batching/test_op_types.py::test_rows_are_what_the_op_gives_for_each",
        "gradients/test_rules.py::test_single_precision",
        "test_op_types.py::test_results_are_of_the_declared_types",
    ),
}


def suite_of(config: pytest.Config) -> str:
    """The suite that was asked for: of what is named, the whole."""
    chosen = config.getoption("suite")
    named = config.args_source is not pytest.Config.ArgsSource.TESTPATHS or config.getoption("keyword")
    return str(chosen or ("whole" if named else "short"))


def _any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(fnmatch.translate, patterns)) or "(?!)")


LEFT_OUT = _any_of(itertools.chain(*CI_ONLY.values()))
WHOLE = _any_of(itertools.chain(*EVERY_POINT.values()))


def is_left_out(path: str) -> bool:
    """Return true if the short suite leaves out a whole file or folder below `tests`."""
    return LEFT_OUT.match(path) is not None


def function_of(item: pytest.Item) -> str:
    """File and test of an item, below `tests`, without its point."""
    return item.nodeid.removeprefix("tests/").partition("[")[0]


def are_short(items: Sequence[pytest.Item]) -> list[bool]:
    """Return for each item true if it is in the short suite."""
    kept: set[pytest.Item] = set()
    for function, group in itertools.groupby(items, function_of):
        if is_left_out(function.partition("::")[0]) or is_left_out(function):
            continue
        points = [item for item in group if item.get_closest_marker("long") is None]
        kept.update(points if WHOLE.match(function) else some_points(points))
    return [item in kept for item in items]


def some_points(points: Sequence[pytest.Item]) -> list[pytest.Item]:
    """At most `MOST` points, or one for each engine, each with most values of parameters that are new at its turn."""
    if len(points) <= 1:
        return list(points)
    by_name = sorted(points, key=lambda point: zlib.crc32(point.name.encode()))
    rest = [(point, _values(point)) for point in by_name]
    most = max(MOST, len({value for _, values in rest for name, value in values if name == "engine"}))
    chosen: list[pytest.Item] = []
    seen: set[tuple[str, object]] = set()
    while rest and len(chosen) < most:
        best = max(rest, key=lambda of_point: len(of_point[1] - seen))
        if chosen and best[1] <= seen:
            break
        rest.remove(best)
        seen |= best[1]
        chosen.append(best[0])
    return chosen


def _values(point: Any) -> set[tuple[str, object]]:
    """Values of a point's parameters, by name: numbers and texts by what they are, other objects each by itself."""
    plain = (bool, int, float, complex, str, type(None))
    return {(name, (type(x), x) if isinstance(x, plain) else id(x)) for name, x in point.callspec.params.items()}
