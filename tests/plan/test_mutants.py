"""Mutants of the passes that make and place plans: the checker rejects each of them on a small program."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from plan.plans import graph_of, placed
from plan.small_programs import SMALL

from ctrlgrad.plan import columns, effects, fusion, liveness, packing, placement, stack_handles
from ctrlgrad.plan.checker import Schedule, _Checker, check
from ctrlgrad.plan.checking.memory import PlanError
from ctrlgrad.plan.effects import reads
from ctrlgrad.plan.lowering.state import State
from ctrlgrad.plan.model import ROLES, Branch, Factorise, Kernel, Loop, Move, Operand, Stack
from ctrlgrad.plan.placement import Slots, _Placement, _Wanted
from ctrlgrad.plan.stack_handles import _Handles

Mutation = Callable[[pytest.MonkeyPatch], None]
MUTANTS: list[Any] = []


def mutant(*programs: str) -> Callable[[Mutation], Mutation]:
    """Register a mutation that the checker must reject on each of these programs."""

    def add(mutation: Mutation) -> Mutation:
        MUTANTS.extend(pytest.param(mutation, name, id=f"{mutation.__name__}-{name}") for name in programs)
        return mutation

    return add


class _Nothing(liveness.After):
    """A liveness result in which every value is dead after the step."""

    def __contains__(self, value: object) -> bool:
        return False

    def last_read(self, value: object) -> int | None:
        return -1


class _Forgetful(liveness.Liveness):
    def __init__(self, plan: Any) -> None:
        super().__init__(plan)
        self.after = {step: _Nothing(after.ends, after.position) for step, after in self.after.items()}


@mutant("carry_gathered_after_its_successor", "update_of_what_is_needed")
def what_is_needed_later_is_overwritten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(placement, "Liveness", _Forgetful)


@mutant("captured_stack_in_a_loop", "array_pushed_and_updated")
def stacks_needed_later_are_changed_in_place(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stack_handles, "Liveness", _Forgetful)


@mutant("captured_value_in_a_loop", "carry_captured_by_an_inner_loop_after_its_successor")
def what_a_loop_captures_is_not_kept_for_the_next_iteration(patch: pytest.MonkeyPatch) -> None:
    def loop(self: Any, step: Any, after: Any) -> None:
        last, inside = (liveness.kept(getattr(c, name) for c in step.carries) for name in ("next", "inside"))
        self._block(step.body, last, after)
        self._block(step.condition, inside, after)

    patch.setattr(liveness.Liveness, "_loop", loop)


@mutant("branch_whose_results_are_wanted_nowhere")
def what_inner_blocks_read_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(liveness, "deep_reads", lambda step: set(reads(step)))


@mutant(
    "carry_read_by_a_kernel_of_another_space_after_its_successor",
    "carry_gathered_after_its_successor",
    "carry_captured_by_an_inner_loop_after_its_successor",
    "a_carry_that_doubles_where_it_is_full",
)
def a_carry_is_overwritten_before_its_old_value_is_read(patch: pytest.MonkeyPatch) -> None:
    """The new carry overwrites the old one before a later step reads the old one."""
    patch.setattr(_Placement, "is_wanted_free", lambda self, wanted, array, step: self.fits(array, wanted.buffer))


@mutant(
    "carry_gathered_after_its_successor",
    "branch_whose_results_are_wanted_nowhere",
    "a_carry_that_doubles_where_it_is_full",
)
def a_carry_has_one_buffer(patch: pytest.MonkeyPatch) -> None:
    """The buffer reserved for the next carry counts as free while this iteration's carry lies elsewhere."""

    def is_free(self: Any, buffer: int, array: Any, step: Any) -> bool:
        return not any(other in self.live.after[step] for other in self.holds[buffer])

    patch.setattr(_Placement, "is_free", is_free)
    patch.setattr(placement, "_Wanted", lambda buffer, blocked=frozenset(): _Wanted(buffer))


@mutant("gather_of_a_dead_value")
def gathered_reads_may_be_overwritten(patch: pytest.MonkeyPatch) -> None:
    right = placement.may_overwrite

    def careless(step: Any, array: Any, other: Any) -> bool:
        reading = [o for o in step.operands if o.view.array is other] if isinstance(step, Kernel) else []
        return all(o.gathered for o in reading) if reading else right(step, array, other)

    patch.setattr(placement, "may_overwrite", careless)


@mutant("transpose_of_a_dead_value", "gather_of_a_dead_value")
def reads_elsewhere_may_be_overwritten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(placement, "may_overwrite", lambda step, array, other: isinstance(step, Kernel))


@mutant("rows_read_before_another_is_written", "rows_of_a_stack_that_goes_on")
def all_rows_are_read_in_place_though_the_stack_changes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Slots, "is_last", lambda self, *rest: True)
    patch.setattr(_Handles, "owned", lambda self, stack, step, steps: stack)


@mutant("system_of_dead_values", "factors_and_their_gradient")
def factors_are_written_over_what_they_are_made_of(patch: pytest.MonkeyPatch) -> None:
    """Factors overwrite their matrix, although a reference kernel may still need it for the error."""

    class Careless(liveness.Liveness):
        def __init__(self, plan: Any) -> None:
            super().__init__(plan)
            for step, after in self.after.items():
                if isinstance(step, Factorise):
                    self.after[step] = _Nothing(after.ends, after.position)

    patch.setattr(placement, "Liveness", Careless)
    patch.setattr(placement, "operands_of", lambda step: list(reads(step)) if isinstance(step, Factorise) else [])
    patch.setattr(placement, "may_overwrite", lambda step, array, other: isinstance(step, Factorise))


@mutant("carries_that_change_places", "argument_returned_twice", "branch_that_passes_on")
def a_move_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    right = _Placement.ordered
    patch.setattr(_Placement, "ordered", lambda self, moves: right(self, moves)[:-1])


@mutant("carries_that_change_places", "carry_that_moves_on")
def moves_come_in_any_order(patch: pytest.MonkeyPatch) -> None:
    def ordered(self: Any, moves: Any) -> Any:
        return tuple(Move(array, source, target) for array, source, target in moves if source != target)

    patch.setattr(_Placement, "ordered", ordered)


@mutant("branch_whose_results_are_wanted_nowhere", "value_needed_after_a_branch")
def two_results_of_a_kernel_share_a_buffer(patch: pytest.MonkeyPatch) -> None:
    right = _Placement.choose

    def choose(self: Any, array: Any, step: Any) -> None:
        right(self, array, step)
        for other in placement.results_of(step):
            place = self.places.get(other)
            if other is not array and place is not None and place.kind == "buffer" and self.fits(array, place.number):
                self.places[array] = place

    patch.setattr(_Placement, "choose", choose)


@mutant("value_needed_after_a_branch")
def a_branch_forgets_what_is_needed_after_it(patch: pytest.MonkeyPatch) -> None:
    right = liveness.Liveness._block

    def block(self: Any, block: Any, at_end: Any, around: Any) -> None:
        is_branch = around is not None and isinstance(self.steps[around.position], Branch)
        self.steps, outside = block.steps, getattr(self, "steps", ())
        right(self, block, at_end, None if is_branch else around)
        self.steps = outside

    patch.setattr(liveness.Liveness, "_block", block)


@mutant("buffers_of_two_sizes", "value_needed_after_a_branch")
def buffers_have_any_size(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Placement, "sizes_that_fit", lambda self, array: array.dtype)


@mutant("array_of_a_late_size_passed_on_and_needed_after")
def what_is_needed_elsewhere_is_handed_over(patch: pytest.MonkeyPatch) -> None:
    def handed_over(self: Any, block: Any, move: Move, *_: Any) -> bool:
        return all(p.kind == "buffer" and self.buffers[p.number].is_free_to_move for p in (move.source, move.target))

    patch.setattr(_Placement, "is_handed_over", handed_over)


@mutant("branch_that_passes_on")
def memory_of_others_is_exchanged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Placement, "is_handed_over", lambda *_: True)


@mutant("array_pushed_and_updated", "row_needed_after_further_pushes")
def a_slot_is_taken_while_its_stack_changes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Slots, "_is_touched", lambda *_: False)


@mutant("row_that_updates_what_is_needed")
def what_is_needed_is_updated_in_a_slot(patch: pytest.MonkeyPatch) -> None:
    right = placement.origins_of
    nothing = defaultdict(frozenset)
    patch.setattr(placement, "origins_of", lambda array, producers, after: right(array, producers, nothing))


@mutant("popped_row_kept_over_another_pop", "row_needed_after_further_pushes")
def a_row_is_read_in_place_after_its_stack_changed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Slots, "is_still", lambda self, *rest: True)


@mutant("captured_stack_in_a_loop", "array_pushed_and_updated")
def a_stack_is_not_copied_before_an_update(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Handles, "owned", lambda self, stack, step, steps: stack)


@mutant("arrays_that_change_places", "array_from_outside_goes_on_in_a_loop")
def stacks_do_not_change_places(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Handles, "moved", lambda self, block, wanted, needed: (block, tuple(v for v, _ in wanted)))


@mutant("array_of_two_carries", "captured_stack_in_a_loop")
def two_carries_have_one_stack(patch: pytest.MonkeyPatch) -> None:
    right = _Handles.copy

    def copy(self: Any, stack: Any) -> Any:
        found = right(self, stack)
        self.handles[found.result] = self.handles[stack]
        return found

    patch.setattr(_Handles, "copy", copy)


@mutant("gather_of_a_dead_value", "transpose_of_a_dead_value")
def fusion_puts_kernels_behind_their_readers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fusion, "deep_reads", lambda step: set())


@mutant("transpose_of_a_dead_value", "product_packed_before_a_loop")
def fusion_forgets_what_blocks_give(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fusion, "count_reads", lambda plan: Counter())


@mutant("update_of_all_in_another_order")
def fusion_joins_an_update_to_the_kernel_that_makes_what_it_updates(patch: pytest.MonkeyPatch) -> None:
    right = fusion._Group.takes

    def takes(self: Any, kernel: Any) -> bool:
        return right(self, replace(kernel, writes=tuple(replace(w, base=None) for w in kernel.writes)))

    patch.setattr(fusion._Group, "takes", takes)


@mutant("product_with_another_matrix_each_time")
def a_side_that_moves_is_packed_before_the_loop(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(packing, "names_of", lambda sizes: set())


@mutant("row_read_in_a_loop_that_carries_its_stack")
def a_row_stays_where_it_is_when_a_chunk_ends(patch: pytest.MonkeyPatch) -> None:
    """A loop counts as touching only the stacks that it pushes to, without the stacks whose blocks it closes."""
    right = Slots._is_touched

    def is_touched(self: Any, block: Any, start: int, end: int, handle: int) -> bool:
        others = [k for k in range(start, end) if not isinstance(block.steps[k], Loop)]
        return any(right(self, block, k, k + 1, handle) for k in others)

    patch.setattr(Slots, "_is_touched", is_touched)


@mutant("arrays_that_change_places", "array_given_by_a_branch_and_needed_after_it")
def stacks_are_taken_to_be_where_they_are_wanted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Handles, "is_there", lambda self, stack, wanted: True)


@mutant("array_from_outside_goes_on_in_a_loop")
def two_results_of_a_block_are_one_stack(patch: pytest.MonkeyPatch) -> None:
    """One stack moves to two handles at once."""

    def moved(self: Any, block: Any, wanted: Any, needed: Any) -> Any:
        pairs = [(v, t) for v, t in wanted if isinstance(v, Stack) and not self.is_there(v, t)]
        moves = tuple((v, self.handles[v], self.handles[t]) for v, t in pairs)
        return replace(block, stack_moves=moves), tuple(v for v, _ in wanted)

    patch.setattr(_Handles, "moved", moved)


@mutant("product_packed_before_a_loop")
def a_changing_side_is_packed_before_the_loop(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(packing, "defined_inside", lambda loop: set())


@mutant("rows_of_a_matrix_that_changes", "rows_of_a_matrix_that_stays_in_an_inner_loop")
def columns_of_a_changing_matrix_are_laid_out_before_the_loop(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(columns, "defined_inside", lambda loop: set())


@mutant("rows_of_a_part_that_moves")
def columns_of_a_part_that_moves_are_laid_out_before_the_loop(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(columns, "names_of", lambda sizes: set())


@mutant("rows_of_a_matrix_beside_another_array")
def columns_may_be_written_over(patch: pytest.MonkeyPatch) -> None:
    """The memory of laid-out columns counts as free at once."""
    patch.setattr(effects, "_fields", effects._fields.__wrapped__)
    patch.setitem(ROLES, Operand, ROLES[Operand] | {"Reads": ("view", "gathered")})


@mutant("sizes_named_as_the_arguments")
def a_number_takes_the_name_of_a_size(patch: pytest.MonkeyPatch) -> None:
    def fresh(self: Any, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    patch.setattr(State, "fresh", fresh)


@pytest.mark.parametrize("mutation, name", MUTANTS)
def test_a_mutant_is_caught(monkeypatch: pytest.MonkeyPatch, mutation: Mutation, name: str) -> None:
    program = SMALL[name]
    graph = graph_of(program.fn, *program.arguments, order=program.order, signature=program.signature)
    mutation(monkeypatch)
    mutated = placed(graph, program.arguments)
    with pytest.raises(PlanError):
        check(mutated)


def test_a_row_that_stays_is_lost_by_the_end_of_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a chunk alone makes this mutant fail, where no block is ever full."""
    program = SMALL["row_read_in_a_loop_that_carries_its_stack"]
    graph = graph_of(program.fn, *program.arguments)
    a_row_stays_where_it_is_when_a_chunk_ends(monkeypatch)
    mutated = placed(graph, program.arguments)
    monkeypatch.setattr(_Checker, "capacity", lambda self: 100)
    pushless = [Schedule((3, 0), seed=seed) for seed in range(8)]
    with pytest.raises(PlanError, match="whose block its stack has closed since"):
        check(mutated, pushless)
    monkeypatch.setattr(_Checker, "chunk_ends", lambda self: False)
    check(mutated, pushless)
