"""Calls that make CUDA graphs: refusals by the driver and by the stand-in, and declarations in CUDA's header."""

from __future__ import annotations

import ctypes
import gc
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.driver import STREAM, Driver
from instruments.graph_driver import (
    CAPTURE_STREAM,
    INVALID,
    INVALIDATED,
    NOT_SUPPORTED,
    UNSUPPORTED,
    UNWRITTEN,
    Conditional,
    Graph,
    Graphs,
)
from instruments.graph_loops import rnn
from instruments.stand_in import StandIn, StandInDevice
from instruments.stand_in_runs import on_reference, on_stand_in

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import memory
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda.engine import explain_on
from ctrlgrad.engines.cuda.prepared import entries, graphs
from ctrlgrad.engines.cuda.prepared.binding import Binding
from ctrlgrad.engines.cuda.prepared.entries import LaunchList, Words
from ctrlgrad.engines.cuda.prepared.graphs import FUNCTIONS, Capture, NodeParameters
from ctrlgrad.errors import MemoryBudgetError
from ctrlgrad.ir import interning


def explained(library: StandIn, steps: int = 40) -> list[str]:
    graph, arguments = rnn(steps)
    assert_same(on_stand_in(graph, arguments, library=library).results, on_reference(graph, arguments), 1e-9)
    return [
        loop.launching for loop in explain_on(library, optimised_graph(graph, is_for_gpu=True), arguments).all_loops()
    ]


def test_explain_says_what_is_in_a_graph() -> None:
    # How many are kept follows from where arrays lie in both runs.
    found = [text.partition(", ")[2].partition(", one of ")[0] for text in explained(StandIn())]
    assert found == ["in a graph"] * 2
    assert [text.partition(", ")[2] for text in explained(StandIn(), 9)] == ["", ""]
    library = StandIn()
    library.driver.without_graphs = "the driver is CUDA 12.2's"
    assert [text.partition(", ")[2] for text in explained(library)] == [
        "not in a graph (the driver is CUDA 12.2's)"
    ] * 2
    assert library.driver.graph_calls.calls == dict.fromkeys(FUNCTIONS, 0)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if "Destroy" not in name and name != "cuGraphLaunch"])
@pytest.mark.parametrize("status", [NOT_SUPPORTED, UNSUPPORTED, 2])
def test_graphs_that_the_driver_refuses_run_from_the_list(name: str, status: int) -> None:
    """The driver is called once a loop, or once a run if it lacked memory, and nothing is left behind."""
    library = StandIn()
    library.driver.graph_calls.refusals[name] = status
    texts = explained(library)
    assert all(f"not in a graph ({name}: " in text and f"(status {status})" in text for text in texts)
    calls = library.driver.graph_calls.calls
    assert calls[name] == (4 if status == 2 else 2) and not calls["cuGraphLaunch"]
    # Where a capture was spoilt, there is none to destroy.
    lost = calls[name] if name in ("cuGraphCreate", "cuStreamEndCapture") else 0
    assert calls["cuGraphCreate"] == calls["cuGraphDestroy"] + lost
    assert not library.driver.graph_calls.alive and not library.driver.graph_calls.freed_twice


def test_a_node_that_no_body_may_hold_is_a_refusal() -> None:
    """The driver takes it for a wrong argument."""
    library = StandIn()
    library.driver.graph_calls.refusals["cuGraphInstantiateWithFlags"] = INVALID
    reason = "not in a graph (cuGraphInstantiateWithFlags: it has a node that no while node may hold (status 1))"
    assert all(reason in text for text in explained(library))
    assert not library.driver.graph_calls.alive


@pytest.mark.parametrize("status", [NOT_SUPPORTED, 2])
def test_a_graph_that_is_not_launched_is_run_from_the_list(status: int) -> None:
    """The first launch takes memory on the card, which may be full."""
    library = StandIn()
    library.driver.graph_calls.refusals["cuGraphLaunch"] = status
    texts = explained(library)
    assert all("not in a graph (cuGraphLaunch: " in text and f"(status {status})" in text for text in texts)
    gc.collect()
    assert not library.driver.graph_calls.turns and not library.driver.graph_calls.alive
    graph, arguments = rnn(40)
    ran = on_stand_in(graph, arguments, library=library)
    assert_same(ran.results, on_reference(graph, arguments), 1e-9)
    assert not ran.counts.graphs


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if "Destroy" not in name])
def test_other_errors_of_the_driver_are_raised(name: str) -> None:
    library = StandIn()
    library.driver.graph_calls.refusals[name] = 700
    graph, arguments = rnn(40)
    with pytest.raises(RuntimeError, match="status 700"):
        on_stand_in(graph, arguments, library=library)
    gc.collect()
    calls = library.driver.graph_calls.calls
    assert not library.driver.graph_calls.alive and not library.driver.graph_calls.freed_twice
    assert calls["cuStreamBeginCaptureToGraph"] - (name == "cuStreamBeginCaptureToGraph") == calls["cuStreamEndCapture"]


@pytest.mark.parametrize(("status", "is_refusal"), [(3, True), (15, True), (13, False)])
def test_a_product_that_is_not_captured(status: int, is_refusal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    multiply = Driver._multiply

    def refuse(self: Driver, *given: int) -> int | None:
        if self.graph_calls.capturing(CAPTURE_STREAM) is not None:
            return status
        return multiply(self, *given)

    monkeypatch.setattr(Driver, "_multiply", refuse)
    library = StandIn()
    if is_refusal:
        reason = f"not in a graph (a product was not captured (status {status}))"
        assert all(reason in text for text in explained(library))
    else:
        with pytest.raises(RuntimeError, match=f"status {status}"):
            explained(library)
    assert library.driver.graph_calls.capturing(CAPTURE_STREAM) is None and not library.driver.graph_calls.alive


def test_products_without_a_workspace_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the driver, since they take memory by themselves: no body may have a node that does."""
    monkeypatch.setattr(Driver, "workspace_bytes", 0)
    on = Driver._multiply

    def without(self: Driver, *given: int) -> None:
        self._on.workspace = None
        on(self, *given)

    monkeypatch.setattr(Driver, "_multiply", without)
    assert all(
        "cuGraphInstantiateWithFlags: it has a node that no while node may hold" in text
        for text in explained(StandIn())
    )


def test_a_budget_without_memory_for_a_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Driver, "workspace_bytes", 1 << 20)
    library, (graph, arguments) = StandIn(), rnn(40)
    with memory.budget(device=1 << 19, devices={library.name: StandInDevice()}):
        ran = on_stand_in(graph, arguments, library=library)
        report = explain_on(library, optimised_graph(graph, is_for_gpu=True), arguments)
    assert_same(ran.results, on_reference(graph, arguments), 1e-9)
    assert not ran.counts.graphs
    assert "not in a graph (there is no memory for its products)" in str(report)
    # Without the budget it is one.
    assert on_stand_in(graph, arguments, library=library).counts.graphs


def test_a_budget_without_memory_for_a_workspace_of_cublas(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's carry, which would be in buffers by then, is not lost: the loop runs step by step."""

    def launcher(self: StandIn, multiplies: bool) -> Any:
        if multiplies:
            raise MemoryBudgetError("memory: a value of the computation needs 8.1 MiB")
        return launching(self, multiplies)

    launching = StandIn.launcher
    monkeypatch.setattr(StandIn, "launcher", launcher)
    library, (graph, arguments) = StandIn(), rnn(40)
    ran = on_stand_in(graph, arguments, library=library)
    assert_same(ran.results, on_reference(graph, arguments), 1e-9)
    assert all("one by one (there is no memory for its buffers)" in text for text in explained(library))


def test_a_card_without_memory_for_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs use the card too: the array library's error is no budget error then."""

    class OutOfMemoryError(MemoryError):
        """As CuPy's."""

    def empty(self: StandIn, shape: Any, dtype: Any) -> Any:
        if np.dtype(dtype) == np.uint8:
            raise OutOfMemoryError("out of memory allocating the buffers of a list, or a workspace")
        return allocated(self, shape, dtype)

    allocated = StandIn.empty
    monkeypatch.setattr(StandIn, "empty", empty)
    library, (graph, arguments) = StandIn(), rnn(40)
    ran = on_stand_in(graph, arguments, library=library)
    assert_same(ran.results, on_reference(graph, arguments), 1e-9)
    assert not ran.counts.graphs and not ran.counts.runs
    assert all("one by one (there is no memory for its buffers)" in text for text in explained(library))


def test_an_interrupt_in_a_capture_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    library, (graph, arguments) = StandIn(), rnn(40)
    go_on = Capture._choose

    def interrupted(self: Capture, *given: Any) -> None:
        go_on(self, *given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Capture, "_choose", interrupted)
        on_stand_in(graph, arguments, library=library)
    assert not library.driver.graph_calls.alive
    # Lists are kept, and have been gone through before.
    graphs = [on_stand_in(graph, arguments, library=library).counts.graphs for _ in range(2)]
    assert graphs[0] >= 3 and graphs[1] >= graphs[0]
    del graph, arguments
    # Nor does a later trace find the graph, which a function may be traced to again.
    interning.forget()
    gc.collect()
    assert not library.driver.graph_calls.alive


# The stand-in refuses what CUDA refuses.


@pytest.mark.parametrize("what", ["allocation", "waiting", "compilation", "instantiation"])
def test_calls_that_a_capture_does_not_allow(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library, (graph, arguments) = StandIn(), rnn(40)
    driver, out = library.driver, ctypes.c_uint64()
    go_on = Capture._choose

    def forbidden(self: Capture, *given: Any) -> None:
        go_on(self, *given)
        match what:
            case "allocation":
                library.empty((3,), np.dtype(float))
            case "waiting":
                library.read([])
            case "compilation":
                library.function(entries.setting(17), False)
            case _:
                driver.graph_calls._cuGraphInstantiateWithFlags(ctypes.addressof(out), 0, 0)

    monkeypatch.setattr(Capture, "_choose", forbidden)
    with pytest.raises(RuntimeError, match=f"not permitted when stream is capturing: {what}"):
        on_stand_in(graph, arguments, library=library)
    monkeypatch.setattr(Capture, "_choose", lambda self, *given: suppressed(forbidden, self, *given))
    assert all(f"cuStreamEndCapture: not captured (status {INVALIDATED})" in text for text in explained(library))
    # A spoilt capture has freed the body that it went to, which a graph would free again.
    assert not library.driver.graph_calls.freed_twice


def suppressed(function: Callable[..., None], *given: Any) -> None:
    with suppress(RuntimeError):
        function(*given)


def test_conditions_are_of_the_graphs_that_their_nodes_are_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is set in front of its node: a default would be set once a launch alone."""
    found: list[list[int]] = []
    instantiate = Graphs._cuGraphInstantiateWithFlags

    def noted(self: Graphs, out: int, graph: int, flags: int) -> int | None:
        def note(its: Graph) -> None:
            found.append(list(its.conditions.values()))
            for node in its.nodes:
                if isinstance(node, Conditional):
                    note(node.body)

        note(self._things[graph])
        return instantiate(self, out, graph, flags)

    monkeypatch.setattr(Graphs, "_cuGraphInstantiateWithFlags", noted)
    x = np.linspace(-0.5, 1.0, 9).reshape(3, 3)
    inner = lambda j, y: cg.cond(cnp.sum(y) > 1.0, lambda y: cnp.sin(y), lambda y: y * 1.1 + 0.1, y)
    graph = cg.function(lambda x: cg.fori_loop(0, 24, lambda i, y: cg.fori_loop(0, 2, inner, y * 0.9), x)).graph(x)
    ran = on_stand_in(graph, [x])
    assert_same(ran.results, on_reference(graph, [x]), 1e-9)
    # A loop that has a branch of two sides.
    side, loop = [[], []], [UNWRITTEN] * 2
    assert ran.counts.graphs == 1 and found == [loop[:1], loop[:1], loop, *side]


def test_a_graph_is_not_launched_on_a_stream_that_captures() -> None:
    driver = StandIn().driver
    driver.graph_calls._captures[STREAM] = driver.graph_calls  # type: ignore[assignment]
    assert driver.graph_calls._cuGraphLaunch(1, STREAM) == UNSUPPORTED


def test_a_launch_reads_its_arguments_when_it_is_captured() -> None:
    """Later changes of the list change no graph."""
    library, (graph, arguments) = StandIn(), rnn(40)
    capture, made, expected = Binding.capture, Words.made, on_reference(graph, arguments)
    lists: list[LaunchList] = []

    def noted(self: Words) -> LaunchList:
        lists.append(made(self))
        return lists[-1]

    def then_overwritten(self: Binding) -> None:
        capture(self)
        assert lists[-1] is not self.list
        lists[-1].words[:] = 0

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Words, "made", noted)
        patched.setattr(Binding, "capture", then_overwritten)
        assert_same(on_stand_in(graph, arguments, library=library).results, expected, 1e-9)


def test_kernels_of_lists_and_graphs_are_announced_before_they_are_asked_for() -> None:
    """All but those that write words, of which there are few; so they are compiled at once."""
    library, (graph, arguments) = StandIn(), rnn(40)
    asked: list[object] = []
    function = library.function

    def noted(spec: Any, contracts: bool) -> int:
        if spec in library.announced:
            asked.append(spec)
        return function(spec, contracts)

    library.function = noted  # type: ignore[method-assign]
    assert on_stand_in(graph, arguments, library=library).counts.graphs
    settings = {entries.setting(1 << k) for k in range(7)}
    assert library.announced and set(asked) == library.announced
    assert set(library.driver.specs) - library.announced <= settings


# By CUDA's own header.

# Of the toolkit, or of the package `nvidia-cuda-runtime`.
HEADERS = [Path("/usr/local/cuda/include/cuda.h"), *Path(sysconfig.get_path("purelib")).glob("nvidia/*/include/cuda.h")]
HEADER = next((path for path in HEADERS if path.exists()), HEADERS[0])
HAS_HEADER = pytest.mark.skipif(not HEADER.exists(), reason="there is no cuda.h")
# ctypes of parameters; all further parameters are pointers, handles among them.
TYPES = {
    "unsigned int": ctypes.c_uint,
    "unsigned long long": ctypes.c_ulonglong,
    "size_t": ctypes.c_size_t,
    "CUstreamCaptureMode": ctypes.c_int,
}


@HAS_HEADER
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_the_parameters_that_cuda_declares(name: str) -> None:
    """The header gives the newest form of a function the name without a number."""
    header = HEADER.read_text(encoding="latin-1")
    plain = re.sub(r"_v\d$", "", name)
    newest = re.search(rf"#define {plain} +\S*?({plain}_v\d)\b", header)
    assert name == (plain if newest is None else newest[1])
    if plain == "cuGraphInstantiateWithFlags":
        plain = "cuGraphInstantiate"
    declared = re.search(rf"^CUresult CUDAAPI {plain}\((.*?)\);", header, re.MULTILINE | re.DOTALL)
    assert declared is not None
    kinds = ["*" if "*" in given else " ".join(given.split()[:-1]) for given in declared[1].split(",")]
    assert [TYPES.get(kind, ctypes.c_void_p) for kind in kinds] == list(FUNCTIONS[name])


@HAS_HEADER
@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")
def test_parameters_of_a_node_lie_where_cuda_has_them(tmp_path: Path) -> None:
    its = "offsetof(CUgraphNodeParams, conditional) + offsetof(CUDA_CONDITIONAL_NODE_PARAMS, {})".format
    numbers = ["sizeof(CUgraphNodeParams)", "offsetof(CUgraphNodeParams, type)"]
    numbers += [its(name) for name in ("handle", "type", "size", "phGraph_out", "ctx")]
    numbers += ["CU_GRAPH_NODE_TYPE_CONDITIONAL", "CU_GRAPH_COND_TYPE_WHILE"]
    numbers += ["CU_STREAM_CAPTURE_MODE_RELAXED", "sizeof(CUgraphConditionalHandle)"]
    calls = "".join(f'printf("%d\\n", (int)({n}));' for n in numbers)
    main = f"int main(void) {{ {calls} return 0; }}"
    (tmp_path / "layout.c").write_text(f"#include <cuda.h>\n#include <stddef.h>\n#include <stdio.h>\n{main}\n")
    command = ["gcc", f"-I{HEADER.parent}", str(tmp_path / "layout.c"), "-o", str(tmp_path / "layout")]
    subprocess.run(command, check=True, timeout=60)
    found = subprocess.run([tmp_path / "layout"], check=True, capture_output=True, text=True, timeout=60).stdout
    fields = ("kind", "handle", "condition", "size", "bodies", "context")
    mine = [ctypes.sizeof(NodeParameters), *(getattr(NodeParameters, name).offset for name in fields)]
    mine += [graphs._CONDITIONAL, graphs._WHILE, graphs._RELAXED, 8]
    assert list(map(int, found.split())) == mine
