"""Kernels of nodes with regions, and of callbacks; loops that run; native plans for parts of host numbers alone.

Control is on the host. A loop whose predicate is on the host (a counter against a bound) reads nothing. Where the
predicate is on the device, the body is followed by it (`asked_graph`), and it is read before each iteration: by the
card where iterations are a graph, by the list where they are one, and else by the host. A read waits for what was put
on the engine's stream so far, never for the whole device. In a session loops run in chunks for the memory manager too
(see `chunks`).

A loop whose carry and captures are all on the host needs no card, and an interpreter takes microseconds for each of its
ops. Such a loop, with the nodes of its region that only use numbers of the host, becomes a plan of the native engine: a
node `PART`, whose region is that part of the graph (`with_host_parts`). In: a region and the places of its inputs. Out:
a region with the same inputs and outputs. The order of nodes that depend on each other stays: no node of a part depends
on another one through nodes outside. A node with effects is in no part, and no part spans it. Loops inside loops that
work on the card stay there, in launch lists.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ctrlgrad.engines.cuda.chunks import BodyReplay, chunks_of, roles_of, tables_of
from ctrlgrad.engines.cuda.compile import Control, compile_region
from ctrlgrad.engines.cuda.placement import DEVICE, HOST, Place, Places, carried, outputs_of, place, results_of
from ctrlgrad.engines.cuda.prepared.runner import Body, Iterations, LoopState
from ctrlgrad.engines.cuda.program import Context, Program, Regions, scalar, to_device
from ctrlgrad.engines.cuda.stacks import DeviceStack
from ctrlgrad.engines.native.pieces import PART, planned
from ctrlgrad.engines.reference import REFERENCE
from ctrlgrad.engines.reference.control_kernels import note, too_many_iterations
from ctrlgrad.errors import CtrlgradError, MaximumIterationsError
from ctrlgrad.ir import BOOL, Builder, Graph, Node, Value, attributes, control, walk
from ctrlgrad.ir.control import Counting, is_loop
from ctrlgrad.ir.walk import has_effect
from ctrlgrad.memory.session import no_budget
from ctrlgrad.runtime.chunks import UNBOUNDED
from ctrlgrad.runtime.stack import BlockStack


def asked_graph(node: Node) -> Graph:
    """The body with the predicate: (captures, carry, predicate) to (carry, predicate)."""
    loop = control.Loop.of(node)
    builder = Builder(name=loop.body.name)
    builder.source = loop.source
    inputs = [builder.input(v.type, v.hint) for v in loop.body.inputs]
    shared, _ = loop.split(inputs)
    builder.input(BOOL, "goes_on")
    following = builder.inline(loop.body, inputs)
    (test,) = builder.inline(loop.cond, [*shared, *following])
    return builder.finish([*following, test])


class Loop:
    """A `while` node whose operands live where they are said to; `kernels` are those of nodes with regions."""

    def __init__(self, node: Node, given: Places, kernels: Mapping[str, Control]) -> None:
        self.node = node
        self.parts = control.Loop.of(node)
        self.maximum: int | None = attributes.Loop.of(node).maximum_iterations
        shared, _ = self.parts.split(given)
        self.places = carried(self.parts, given)
        self.types = [v.type for v in self.parts.carried]
        inputs = (*shared, *self.places)
        self.cond = compile_region(self.parts.cond, inputs, kernels)
        # The predicate of the next iteration is carried too where the host does not know it.
        self.is_asked = outputs_of(self.parts.cond, inputs)[0] is DEVICE
        besides = (DEVICE,) * self.is_asked
        body = asked_graph(node) if self.is_asked else self.parts.body
        wanted = (*self.places, *besides)
        self.tables = tables_of(self.parts)
        self.body = Body(compile_region(body, (*inputs, *besides), kernels, wanted), self.tables, self.is_asked)
        self._given, self._kernels = given, kernels
        # How it counts, where how often it goes on is known beforehand.
        self.counting = () if self.is_asked else Counting.each(self.parts, lambda value: None)
        self.roles = roles_of(node)
        # On the host a stack has no blocks, which a chunk could be run again for.
        self.can_replay = self.roles.can_replay and any(self.places[i] is DEVICE for i in self.roles.pushed)

    @functools.cached_property
    def iteration(self) -> Program:
        """The body alone, as it is in the list of another loop's body."""
        if not self.is_asked:
            return self.body.program
        inputs = (*self.parts.split(self._given)[0], *self.places)
        return compile_region(self.parts.body, inputs, self._kernels, self.places)

    def __call__(self, context: Context, operands: list[Any]) -> Any:
        state = self._begun(context, operands)
        LoopExecution(self, context, state).run()
        return state.carry if len(state.carry) != 1 else state.carry[0]

    def _begun(self, context: Context, operands: list[Any]) -> LoopState:
        """The state before the first iteration. Takes the operands off their list."""
        shared, carry = self.parts.split(operands)
        state = LoopState(list(shared), list(carry))
        # Only the state holds the carry: it is overwritten in place, and its blocks are freed.
        operands.clear()
        del shared, carry
        for i, its in enumerate(self.places):
            if its is DEVICE:
                state.carry[i] = to_device(context, state.carry[i], self.types[i])
        chunk = attributes.Loop.of(self.node).chunk
        if chunk is not None:
            # A loop over the iterations of one chunk fills one block of each new stack.
            for value in state.carry:
                if isinstance(value, DeviceStack) and not len(value):
                    value.capacity = chunk
        return state


class LoopExecution:
    """A loop that runs: its state, the chunks of its iterations, and how these are numbered in errors."""

    def __init__(self, loop: Loop, context: Context, state: LoopState) -> None:
        self.loop, self.context, self.state = loop, context, state
        self.chunks = chunks_of(loop.node, context, loop.roles, self._replay(), state)
        # A reversed loop starts from the number of iterations and counts down.
        self._step = -1 if attributes.Loop.of(loop.node).counts_down else 1
        self._first = context.number(state.carry[0]) - 1 if self._step < 0 else 0

    def run(self) -> None:
        """All iterations: what the loop leaves is in the state then."""
        loop, run = self.loop, self.context.run
        run.iterations.append(self._first)
        self.context.loops.append(loop.node)
        try:
            self._iterate()
            self.chunks.finish()
        except BaseException as error:
            is_own = isinstance(error, MaximumIterationsError) and error.source is loop.node.source
            if isinstance(error, CtrlgradError) and not is_own and not self.context.is_late:
                note(error, loop.node, run.iterations[-1], run)
            self.chunks.abandon()
            raise
        finally:
            run.iterations.pop()
            self.context.loops.pop()

    def _replay(self) -> BodyReplay | None:
        loop, context = self.loop, self.context
        if context.memory is None or not loop.can_replay:
            return None
        return BodyReplay(loop.body, list(self.state.shared), loop.roles, loop.places, context)

    def _iterate(self) -> None:
        loop, state = self.loop, self.state
        if loop.is_asked:
            state.carry.append(self.context.on_device(self._test()))
        with Iterations(loop.body, self.context, state) as iterations:
            while left := self._left():
                if loop.maximum is not None:
                    left = min(left, loop.maximum - state.trips)
                    if not left:
                        raise too_many_iterations(loop.node, loop.maximum, state.trips)
                ran = iterations.advance(min(left, self.chunks.before()))
                state.trips += ran
                self.chunks.after(ran)
                # An error from now on is of the next iteration.
                self.context.run.iterations[-1] = self._first + self._step * state.trips
        if loop.is_asked:
            del state.carry[-1:]

    def _left(self) -> int:
        """Number of iterations that may be put on the stream: those that are known to come, or no bound where each
        iteration computes the predicate. 0 where the loop has ended."""
        loop = self.loop
        if loop.counting:
            return max(0, min(map(self._distance, loop.counting)))
        if loop.is_asked:
            return UNBOUNDED * bool(self.context.predicate(self.state.carry[-1])[0])
        return int(bool(self._test()))

    def _test(self) -> Any:
        """The predicate."""
        return self.loop.cond(self.state.shared + self.state.carry, self.context)[0]

    def _distance(self, counting: Counting) -> int:
        """Number of iterations until a counter reaches its bound."""
        bound, parts = counting.bound, self.loop.parts
        if isinstance(bound, Value):
            bound = self.state.shared[next(n for n, c in enumerate(parts.captures) if c.outer is bound)]
        count = self.state.carry[parts.carries.index(counting.carry)]
        distance = int(bound) - int(count)
        return (distance if counting.step > 0 else -distance) + counting.beyond


# Order of a region with parts: how many effects came before a node, how often its operands go from host to card and
# back, and whether it works on the card. A node with effects comes first of its number.
Level = tuple[int, int, bool]
CONSTANT: Level = (-1, 0, False)


def with_host_parts(graph: Graph, inputs: Sequence[Place]) -> Graph:
    """The region with a node for each part that has a loop."""
    levels = _levels(graph, place(graph, inputs))
    members: dict[Level, list[Node]] = {}
    for node, level in levels.items():
        if not level[-1]:
            members.setdefault(level, []).append(node)
    members = {level: nodes for level, nodes in members.items() if any(map(_has_loop, nodes))}
    if not members:
        return graph
    ordered: list[Node] = []
    for node in sorted(graph.nodes, key=lambda node: levels.get(node, CONSTANT)):
        nodes = members.get(levels.get(node, CONSTANT), [])
        if not nodes:
            ordered.append(node)
        elif node is nodes[0]:
            part = _part(graph, nodes)
            source = next(filter(_has_loop, nodes)).source
            ordered.append(Node(PART, part.inputs, part.outputs, regions=(part,), source=source))
    return Graph(graph.inputs, tuple(ordered), graph.outputs, graph.name)


def _levels(region: Graph, places: dict[Value, Place]) -> dict[Node, Level]:
    """Level of each node that is no constant."""
    found: dict[Node, Level] = {}
    depth: dict[Value, tuple[int, bool]] = {}
    effects = 0
    for node in region.nodes:
        if node.op.name == "constant":
            continue
        acts = has_effect(node.op, node.regions)
        effects += acts
        is_on_card = acts or not node.results or any(places[v] is not HOST for v in (*node.operands, *node.results))
        given = [depth[v] for v in node.operands if v in depth]
        # A part that reads what comes from the card is a later one.
        its = max((n + (on_card and not is_on_card) for n, on_card in given), default=0)
        depth.update((v, (its, is_on_card)) for v in node.results)
        found[node] = effects, -1 if acts else its, is_on_card
    return found


def _part(region: Graph, nodes: Sequence[Node]) -> Graph:
    """The graph of a part, with the constants that it reads."""
    read = dict.fromkeys(v for node in nodes for v in node.operands)
    constants = [node for node in region.nodes if node.op.name == "constant" and node.result in read]
    defined = {v for node in (*constants, *nodes) for v in node.results}
    inside, needed = set(nodes), set(region.outputs)
    needed.update(v for node in region.nodes if node not in inside for v in node.operands)
    outputs = tuple(v for node in nodes for v in node.results if v in needed)
    return Graph(tuple(v for v in read if v not in defined), (*constants, *nodes), outputs, region.name)


def _has_loop(node: Node) -> bool:
    """Return true for a loop, and for a node with one in its regions."""
    return is_loop(node) or any(is_loop(inner) for region in node.regions for inner in walk(region))


class HostPart:
    """Kernel of a node `PART`: its native plan; its steps, where no plan fits or the plan fails, since they raise the
    error."""

    def __init__(self, node: Node, given: Places, control: dict[str, Control]) -> None:
        (self.region,) = node.regions
        self._given, self._control = given, control
        # True if the last run used the plan.
        self.is_planned = True

    @functools.cached_property
    def steps(self) -> Program:
        """The part step by step."""
        return compile_region(self.region, self._given, self._control)

    def __call__(self, context: Context, operands: list[Any]) -> Any:
        with no_budget():
            found = planned(self.region, operands)
        self.is_planned = found is not None
        results = self.steps(operands, context) if found is None else [_on_host(x) for x in found]
        return results[0] if len(results) == 1 else results


def _on_host(x: Any) -> Any:
    """A result as the host has it: a scalar, or a list of them."""
    if not isinstance(x, BlockStack):
        return scalar(x)
    return list(x.tensor()) if x.written is None else [None if row is None else scalar(row) for row in x.rows()]


class Branches(Regions):
    """A `cond` node: a selector on the device is read."""

    def __init__(self, node: Node, given: Places) -> None:
        wanted = results_of(node, given)
        self.programs = [compile_region(region, given[1:], CONTROL, wanted) for region in node.regions]

    def __call__(self, context: Context, operands: list[Any]) -> Any:
        selector = operands.pop(0)
        if context.library.is_array(selector):
            (selector,) = context.predicate(selector)
        chosen = min(max(int(selector), 0), len(self.programs) - 1)
        arguments = list(operands)
        operands.clear()
        results = self.programs[chosen](arguments, context)
        return results if len(results) != 1 else results[0]


def _callback(node: Node, given: Places) -> Callable[[Context, list[Any]], Any]:
    fn = attributes.Hook.of(node).fn

    def kernel(context: Context, operands: list[Any]) -> Any:
        fn(context.on_host(*operands), tuple(context.run.iterations))
        return ()

    return kernel


def _pure_callback(node: Node, given: Places) -> Callable[[Context, list[Any]], Any]:
    compute = REFERENCE.pure["pure_callback"](node)
    return lambda context, operands: compute(*context.on_host(*operands))


CONTROL: dict[str, Control] = {
    "while": lambda node, given: Loop(node, given, CONTROL),
    "cond": Branches,
    "callback": _callback,
    "pure_callback": _pure_callback,
    PART.name: lambda node, given: HostPart(node, given, CONTROL),
}
