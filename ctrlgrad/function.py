"""`function`: a Python function traced once per signature into a graph, and run by an engine."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ctrlgrad import forks, tree
from ctrlgrad.advice import explains_calls, no_such_attribute
from ctrlgrad.autograph import convert
from ctrlgrad.collector import only_new_objects
from ctrlgrad.engines import Report, current_without
from ctrlgrad.engines.device_array import Apply, DeviceArray, lies_on_card, type_on_card
from ctrlgrad.errors import DifferentiationError, TracingError, TypeMismatchError, UnknownSizeError
from ctrlgrad.execution import after_failure, expect, explain_on, program_of, run_on
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.apply import Array, EagerStack, Float0, as_array, is_weak, type_of
from ctrlgrad.frontend.checks import argument_names
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.tracer import Leaf, Traced
from ctrlgrad.frontend.watched import Watched, code_in, watch
from ctrlgrad.ir import Builder, Graph, StackType, TensorType, Type, join
from ctrlgrad.ir.caching import Recent
from ctrlgrad.ir.interning import shared
from ctrlgrad.memory.session import current as session
from ctrlgrad.options import Options, check_engine, current_options
from ctrlgrad.passes.dead_code import without_calls
from ctrlgrad.signature import (
    Concrete,
    Key,
    Signature,
    Static,
    StaticArguments,
    TensorSpec,
    donated_positions,
    require_numbers,
    simplified,
    static,
)
from ctrlgrad.source import here

# Conversion of the results of a run into arrays for the caller.


def _bases(x: Any) -> list[Any]:
    """An array and the arrays whose memory it views."""
    chain = [x]
    while isinstance(chain[-1], np.ndarray) and chain[-1].base is not None:
        chain.append(chain[-1].base)
    return chain


def hand_out(graph: Graph, results: Sequence[Any], arguments: Sequence[Any], apply: Apply | None = None) -> list[Any]:
    """Return results that share no memory with arguments or constants.

    Results on a card stay there; NumPy's functions compute on them by `apply`.
    """
    handed: list[Any] = []
    shared = {id(y) for x in arguments for y in _bases(x)}
    for value, x in zip(graph.outputs, results, strict=True):
        if isinstance(value.type, StackType):
            rows = x.stack if isinstance(x, EagerStack) else x
            handed.append(EagerStack(value.type, list(rows) if isinstance(rows, list) else rows))
            continue
        if isinstance(x, DeviceArray) and apply is not None:
            handed.append(x.computing_with(apply))
            continue
        array = np.asarray(x)
        if array.base is not None or not array.flags.writeable or id(array) in shared:
            array = array.copy()
        shared.add(id(array))
        handed.append(array)
    return handed


class OnCard:
    """NumPy's functions on arrays on a card, each as a graph there.

    `function_of` makes a function run on the card; the functions of the last `most` kinds of calls are kept.
    """

    def __init__(self, function_of: Callable[[Callable[..., Any]], Callable[..., Any]], most: int) -> None:
        self._function_of = function_of
        self._kept: Recent[Any, Callable[..., Any]] = Recent(most)

    def __call__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves, treedef = tree.flatten((args, kwargs))
        # A number that an elementwise function gets is an operand, not a part of the signature.
        numbers = (bool, int, float, complex) if isinstance(fn, np.ufunc) else ()
        is_array = [isinstance(x, (DeviceArray, np.ndarray, np.generic, *numbers)) for x in leaves]
        fixed = tuple(None if yes else static(x) for x, yes in zip(leaves, is_array, strict=True))

        def call(*arrays: Any) -> Any:
            given = iter(arrays)
            args, kwargs = tree.unflatten(treedef, [next(given) if x is None else x.value for x in fixed])
            return fn(*args, **kwargs)

        run = self._kept.get((fn, treedef, fixed), lambda: self._function_of(call))
        return run(*(x for x, yes in zip(leaves, is_array, strict=True) if yes))


# Fast path of calls: the compiled program is found by the types and sizes of the arguments alone.
#
# Calls of small programs spend most of their time here, so a call takes few steps. An unknown call is traced, compiled
# and run, and then noted.


# Scalar types that imply a dtype.
_NUMBER_TYPES = frozenset([bool, int, float, complex, *(np.dtype(c).type for c in "?bhilqBHILQefdFD")])
# Number of signatures of a function on the fast path.
MOST_KNOWN = 256

Described = tuple[Any, Sequence[Any]]
Unflatten = Callable[[Sequence[Any]], Any]


class Reads(Protocol):
    """State that a traced function reads besides its arguments."""

    captured: list[np.ndarray]
    watched: Watched


class _Bound:
    """The code of a function for arguments of certain types and sizes."""

    def __init__(
        self, graph: Graph, unflatten: Unflatten, program: Callable[[Sequence[Any]], list[Any]], read: Reads
    ) -> None:
        self.graph, self.unflatten, self.program = graph, unflatten, program
        self.captured, self.watched = read.captured, read.watched

    def __call__(self, leaves: Sequence[Any]) -> Any:
        if self.captured:
            leaves = [*leaves, *self.captured]
        try:
            results = self.program(leaves)
        except Exception as error:
            arrays = [np.asarray(x) for x in leaves]
            results = [np.asarray(x) for x in after_failure(self.graph, arrays, error)]
            # The graph may have been compiled again, after an assumption turned out wrong.
            self.program = program_of(self.graph, arrays) or self.program
        return self.unflatten(results)


class KnownCalls:
    """The calls of one function whose code is known."""

    def __init__(self) -> None:
        self._bound: dict[Any, _Bound] = {}

    def __len__(self) -> int:
        return len(self._bound)

    def get(self, key: Any) -> _Bound | None:
        return self._bound.get(key)

    def note(self, key: Any, graph: Graph, unflatten: Unflatten, arrays: Sequence[Any], read: Reads) -> None:
        """Remember the code that served this call, for calls that differ in the arrays' values only.

        `read` holds the captured arrays, which follow the arguments, and the Python state that must be unchanged.
        """
        if any(isinstance(v.type, StackType) for v in (*graph.inputs, *graph.outputs)):
            return
        program = program_of(graph, arrays)
        if program is not None:
            if len(self._bound) >= MOST_KNOWN:
                self._bound.clear()
            self._bound[key] = _Bound(graph, unflatten, program, read)


def described(engine: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Described | None:
    """Return a call's key for compiled code and its arrays and numbers; None if other state decides."""
    options = current_options()
    if engine == "auto":
        engine = options.engine
    if engine not in ("auto", "native") or options.check_nans or session() is not None or current_without():
        return None
    # If each argument is an array or a number, their number determines their tree.
    found = None if kwargs else _described(args, options)
    if found is not None:
        return found
    leaves, treedef = tree.flatten((args, kwargs))
    found = _described(leaves, options)
    return None if found is None else ((treedef, found[0]), found[1])


def _described(leaves: Sequence[Any], options: Options) -> Described | None:
    key: list[Any] = [options.of_traces]
    has_static = False
    for leaf in leaves:
        kind = type(leaf)
        if kind is np.ndarray or kind is Array:
            key += (leaf.dtype, leaf.shape)
        elif kind in (float, complex) and options.default_float != "float64":
            return None
        elif kind in _NUMBER_TYPES and (kind is not int or -(1 << 63) <= leaf < 1 << 63):
            key.append(kind)
        elif kind is Static:
            key.append(leaf)
            has_static = True
        else:
            return None
    return tuple(key), [x for x in leaves if type(x) is not Static] if has_static else leaves


_ARRAYS = (np.ndarray, np.generic, bool, int, float, complex, EagerStack)
# Number of signatures whose graphs are kept; each value of a static Python integer counts as one.
SIGNATURES = 1024
# Errors of a trace for unknown sizes that are due to these sizes. A derivative is refused for what a graph is made of,
# so one that exact sizes have is refused for the unknown ones.
_OF_UNKNOWN_SIZES = (TracingError, UnknownSizeError, DifferentiationError)


class Function:
    """A Python function that runs as a graph; made by `ctrlgrad.function`."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_such_attribute("a compiled function", self, name)

    def __init__(
        self,
        fn: Callable[..., Any],
        engine: str,
        signature: Sequence[Any] | None,
        name: str | None,
        static: StaticArguments | None = None,
        donated: Sequence[int] = (),
        written: Callable[..., Any] | None = None,
    ) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        # The function as the user wrote it, where another was made of it.
        self.written = written
        self.engine = engine
        wish = name or str(getattr(fn, "__name__", "function"))
        self.name: str = wish if wish.isidentifier() else "function"
        self.signature = signature
        self.static = static
        self.donated = tuple(donated)
        self.traces = 0
        self._cache: Recent[Key, Signature] = Recent(SIGNATURES)
        self._known = KnownCalls()
        self._lock = forks.recursive_lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> Function:
        new = memo[id(self)] = copy.copy(self)  # A method is copied with its object, without traces.
        new.fn = copy.deepcopy(self.fn, memo)
        new.traces, new._cache, new._known, new._lock = 0, Recent(SIGNATURES), KnownCalls(), forks.recursive_lock()
        return new

    def __reduce__(self) -> Any:
        raise TypeMismatchError(
            f"pickle: {self.name} is a function of ctrlgrad, and what was traced and compiled has no pickled form",
            got=type(self).__name__,
            hint="pickle the arguments, and apply ctrlgrad.function or the transform again where they are read",
        )

    def __copy__(self) -> Function:
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        return new

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if trace.current() is not None:
            return self.fn(*args, **kwargs)
        args, kwargs = self._marked(args, kwargs)
        found = described(self.engine, args, kwargs)
        if found is not None:
            key, leaves = found
            bound = self._known.get(key)
            if bound is not None and bound.watched.is_current():
                return bound(leaves)
        concrete, arrays, result = self._traced_and_run(args, kwargs)
        if found is not None and not any(map(_is_swapped, leaves)):
            self._known.note(key, concrete.program, concrete.unflatten, arrays, concrete)
        return result

    def _traced_and_run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Concrete, list[Any], Any]:
        """Trace and run a call; return its trace, its arrays and its result."""
        require_numbers(tree.leaves((args, kwargs)))
        engine = self._engine_now()
        expect(engine)
        concrete, arrays = self._specialize(args, kwargs)
        checks, donated = current_options().check_nans, donated_positions(args, self.donated, arrays)
        arrays = [*arrays, *concrete.captured]
        results = run_on(engine, concrete.program, arrays, checks, stays_on_card=True, donated=donated)
        return concrete, arrays, concrete.unflatten(hand_out(concrete.program, results, arrays, _COMPUTE))

    def _marked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self.static.mark(args, kwargs) if self.static else (args, kwargs)

    def graph(self, *args: Any, **kwargs: Any) -> Graph:
        """The graph for these arguments, simplified as it would run. Arguments may be `TensorSpec`s.

        >>> print(cg.function(lambda x: x * x + 1.0, name="f").graph(2.0))
        graph f(x: f64[]) {
          v1 = multiply x, x : f64[]
          v2 = constant 1. : f64[]
          v3 = add v1, v2 : f64[]
          return v3
        }
        """
        return self._specialize(*self._marked(args, kwargs))[0].simplified

    def graph_with_calls(self, *args: Any, **kwargs: Any) -> Graph:
        """The graph as it was traced, with functions that have rules as calls."""
        return self._specialize(*self._marked(args, kwargs))[0].graph

    def explain(self, *args: Any, **kwargs: Any) -> Report:
        """Run for these arguments and say what was done, loop by loop; on the native engine, or on "cuda" by that name.

        The report prints, and has for each loop: the engine (with the reason where it is not native), the fused kernels
        and matrix products, the values pushed with their bytes and reasons, and the ops that Python is called back for,
        with the reason. `captured` says what the function reads besides its arguments, from where, and when: numbers
        and small arrays are compared at each call, large arrays are read. On a GPU: the text of each kernel, the other
        ops by where they run (some go through the host), how the loop's predicate is read, and how often the run
        launched, copied and waited.

        >>> def root(a):
        ...     step = lambda x: 0.5 * (x + a / x)
        ...     return cg.while_loop(lambda x: abs(x * x - a) > 1e-12, step, a)
        >>> report = cg.function(cg.grad(root)).explain(2.0)
        >>> [loop.engine for loop in report.loops], report.loops[0].bytes_per_iteration
        (['native', 'native'], 8)

        Raises:
            UserInputError: the engine is not installed, or the arguments lie on a GPU and the engine is another.
        """
        concrete, arrays = self._specialize(*self._marked(args, kwargs))
        report = explain_on(self._engine_now(), concrete.program, [*arrays, *concrete.captured])
        report.captured = concrete.watched.lines()
        return report

    def _engine_now(self) -> str:
        return self.engine if self.engine != "auto" else current_options().engine

    def _specialize(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Concrete, list[Any]]:
        leaves, treedef = tree.flatten((args, kwargs))
        types: list[Type] = []
        keys: list[Any] = []
        arrays: list[Any] = []
        for leaf in leaves:
            if isinstance(leaf, TensorSpec):
                types.append(leaf.type)
                keys.append((leaf.type.dtype, leaf.type.rank, False))
            elif isinstance(leaf, _ARRAYS):
                t = type_of(leaf)
                types.append(t)
                arrays.append(leaf.stack if isinstance(leaf, EagerStack) else as_array(leaf))
                keys.append(t if isinstance(t, StackType) else (t.dtype, t.rank, is_weak(leaf)))
            elif lies_on_card(leaf):
                arrays.append(leaf)
                on_card = TensorType(*type_on_card(leaf))
                types.append(on_card)
                keys.append((on_card.dtype, on_card.rank, False))
            elif hasattr(leaf, "__array__") and not isinstance(leaf, Tensor):
                arrays.append(as_array(leaf))
                types.append(type_of(arrays[-1]))
                keys.append((arrays[-1].dtype, arrays[-1].ndim, False))
            else:
                keys.append(static(leaf))
        if self.signature is not None:
            types = self._declared(args, kwargs, types)
        key = Key(treedef, tuple(keys), self.engine, current_options().of_traces)
        with self._lock:
            return self._known_for(self._cache.get(key, Signature), types, leaves, treedef), arrays

    def _known_for(self, known: Signature, types: list[Type], leaves: list[Any], treedef: tree.TreeDef) -> Concrete:
        """Return the trace for these types; trace now if there is none."""
        for place, concrete in enumerate(known.variants):
            if concrete.accepts(types):
                if concrete.watched.is_current():
                    return concrete
                return self._trace_again(known, place, types, leaves, treedef)
        return self._trace_new(known, types, leaves, treedef)

    def _trace_again(
        self, known: Signature, place: int, types: list[Type], leaves: list[Any], treedef: tree.TreeDef
    ) -> Concrete:
        """Trace in place of a former trace, for its types; or for these, if the function now needs their sizes."""
        known.variants[place] = self._trace_for(known, known.variants[place].types, types, leaves, treedef)
        return known.variants[place]

    def _trace_new(self, known: Signature, types: list[Type], leaves: list[Any], treedef: tree.TreeDef) -> Concrete:
        """Trace for these types. Sizes that differ from a former call's become unknown."""
        wide: Sequence[Type] = types
        if known.variants and not known.exact_only:
            merged = [join(a, b) for a, b in zip(known.variants[-1].types, types, strict=True)]
            wide = types if None in merged else [t for t in merged if t is not None]
        known.variants.append(self._trace_for(known, wide, types, leaves, treedef))
        return known.variants[-1]

    def _trace_for(
        self, known: Signature, wide: Sequence[Type], types: list[Type], leaves: list[Any], treedef: tree.TreeDef
    ) -> Concrete:
        """Trace for wide types, some of whose sizes may be unknown; for these types where that fails.

        A function that asks for the number of an unknown size is traced for exact sizes from now on. Any other error
        is the user's, who gets the one of the exact sizes, or it comes from unknown sizes alone: then this call works,
        with a warning, and the next size is tried as unknown again.
        """
        if list(wide) == types:
            return self._trace(types, leaves, treedef)
        with trace.trying_unknown_sizes() as trial:
            try:
                return self._trace(wide, leaves, treedef)
            except Exception as error:
                needs_numbers = trial.needs_numbers or isinstance(error, _OF_UNKNOWN_SIZES)
                failure = f"{type(error).__name__}: {error}"
        concrete = self._trace(types, leaves, treedef)
        if needs_numbers:
            known.exact_only = True
        else:
            place = here()
            warnings.warn(
                f"{self.name}: traced for the sizes of this call alone{f', at: {place}' if place else ''}\n"
                f"for unknown sizes it raised: {failure}",
                RuntimeWarning,
                stacklevel=2,
            )
        return concrete

    def _trace(self, types: Sequence[Type], leaves: list[Any], treedef: tree.TreeDef) -> Concrete:
        self.traces += 1
        with only_new_objects():
            return self._traced(types, leaves, treedef)

    def _traced(self, types: Sequence[Type], leaves: list[Any], treedef: tree.TreeDef) -> Concrete:
        given = iter(types)
        is_input = [isinstance(x, (*_ARRAYS, TensorSpec)) or hasattr(x, "__array__") or lies_on_card(x) for x in leaves]
        inputs = [
            Leaf(next(given), is_weak(x), hint)
            for x, hint, yes in zip(leaves, argument_names(self.fn, treedef), is_input, strict=True)
            if yes
        ]

        known = [x.value if isinstance(x, Static) else x for x in leaves]

        def call(tensors: list[Tensor]) -> Any:
            passed = iter(tensors)
            given = [next(passed) if yes else x for x, yes in zip(known, is_input, strict=True)]
            return self._called(*tree.unflatten(treedef, given))

        what = f"{self.name}: the result"
        fixed = [x for x, yes in zip(known, is_input, strict=True) if not yes]
        roots = [*fixed, *code_in(tree.unflatten(treedef, known))]
        before = self._watch(roots, [])
        with trace.capturing() as held:
            traced = Traced(self.name, call, inputs, what=what, builder=Builder(name=self.name))
            graph = traced.finish()
        empty = frozenset(i for i, x in enumerate(traced.leaves) if isinstance(x, Float0))
        found, constants = shared(without_calls(graph))
        captured = [_users_own(x, held) for x in constants]
        own = [x for x, constant in zip(captured, constants, strict=True) if x is not constant]
        watched = self._watch(roots, own).without_own(before)
        return Concrete(tuple(types), graph, traced.treedef, simplified(found), captured, watched, empty)

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.fn(*args, **kwargs)

    def _watch(self, given: list[Any], captured: list[np.ndarray]) -> Watched:
        """Watch the function and the objects and classes that it is given; `captured` arrays are inputs."""
        found = watch([self.fn, self.written, *given])
        found.inputs, found.shapes = tuple(captured), tuple(x.shape for x in captured)
        return found

    def _declared(self, args: tuple[Any, ...], kwargs: dict[str, Any], types: list[Type]) -> list[Type]:
        assert self.signature is not None
        specs = tree.leaves(tuple(self.signature))
        if len(specs) != len(types):
            raise TypeMismatchError(
                f"{self.name}: the arguments do not fit the signature",
                expected=f"{len(specs)} arrays",
                got=f"{len(types)} arrays",
                hint="pass as many arrays as the signature declares, or change the signature",
            )
        for position, (spec, given) in enumerate(zip(specs, types, strict=True)):
            if not spec.type.accepts(given):
                raise TypeMismatchError(
                    f"{self.name}: array {position} does not fit the signature",
                    expected=str(spec.type),
                    got=str(given),
                    hint="cast or reshape the argument, or declare the dimension as None",
                )
        return [spec.type for spec in specs]

    def __repr__(self) -> str:
        return f"<ctrlgrad function {self.name}>"


def _users_own(constant: np.ndarray, held: trace.Captured) -> np.ndarray:
    """The user's array that a constant is a copy of, unless the function itself has changed it meanwhile."""
    _, array = held.get(id(constant), (None, constant))
    return array if array.tobytes() == constant.tobytes() else constant


def _is_swapped(x: Any) -> bool:
    """Return true if an array is not in the machine's byte order: compiled code takes a copy of it."""
    return isinstance(x, np.ndarray) and not x.dtype.isnative


@explains_calls
def function(
    fn: Callable[..., Any] | None = None,
    *,
    engine: str = "auto",
    signature: Sequence[Any] | None = None,
    name: str | None = None,
    autograph: bool = False,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] = (),
) -> Any:
    """Make a Python function run as a graph: it is called once per signature, with symbolic tensors.

    What it reads besides its arguments may change, unlike under `jax.jit`: where a global or closure variable, a
    default, an attribute of an object or a module, an element of a list, dict or set, or an array of up to 4,096 bytes
    is not what it was, it is called again. Larger arrays that tensors meet are read at each call. Not noticed are
    attributes in slots or behind a property, containers of more than 64 elements, and numbers that NumPy computed of a
    larger array while the function was called; pass those as arguments. `explain` lists what was read.

    Args:
        fn: takes and returns pytrees of arrays and numbers. Leaves of other types are part of the signature.
        engine: "native" to compile the whole graph to machine code; "reference" to run it op by op; "cuda" to run on a
            GPU by CuPy, on NumPy or CuPy arrays; "dataflow" to run asynchronously on several devices
            (`ctrlgrad.device`); "auto", which is "native", or what `ctrlgrad.options` says.
        signature: one `TensorSpec` (or pytree of them) per positional argument; None for an unknown dimension.
        name: how the graph is called.
        autograph: whether Python's `if`, `while`, `for`, `and`, `or` and `not` on traced tensors become `cond` and
            `while_loop`, in `fn` and in the functions of yours that it calls. Needs `ctrlgrad[autograph]`.
        static_argnums, static_argnames: arguments that are no arrays for the graph but reach `fn` as they are, by
            position or name; as for `jax.jit`. They are hashable, and each value has a graph of its own.
        donate_argnums: positions of arguments whose arrays on a card (`DeviceArray`) the function may overwrite; they
            cannot be used afterwards. Arrays elsewhere stay as they are.

    With engine="cuda" results stay on the card, as `DeviceArray`s; `numpy.asarray` copies them.

    Two calls whose arrays differ in sizes alone share a graph: at the second call the sizes that differ become
    unknown and the function is traced once more. A function that asks for the number of such a size (`range(n)`, an
    f-string) is traced once for each size. Where it raises any other error for unknown sizes alone, the call works, and
    a `RuntimeWarning` has the error's text.

    >>> @cg.function
    ... def norm(x):
    ...     return np.sqrt((x * x).sum())
    >>> norm(np.array([3.0, 4.0]))
    array(5.)
    """
    check_engine(engine)
    if fn is None:
        return functools.partial(
            function,
            engine=engine,
            signature=signature,
            name=name,
            autograph=autograph,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_argnums=donate_argnums,
        )
    fixed = StaticArguments("function", fn, static_argnums, static_argnames)
    donated = (donate_argnums,) if isinstance(donate_argnums, int) else donate_argnums
    return Function(convert(fn) if autograph else fn, engine, signature, name, fixed, donated, fn)


# Work of NumPy's functions on results that stayed on a card.
_COMPUTE = OnCard(lambda fn: Function(fn, "cuda", None, None), MOST_KNOWN)
