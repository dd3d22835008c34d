"""`TensorArray`: a list of tensors that grows and is indexed inside loops; every update returns the new array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import optree

from ctrlgrad.advice import explains_calls
from ctrlgrad.dtypes import as_dtype, can_cast, dtype_kind
from ctrlgrad.errors import ShapeError, TracingError, TypeMismatchError
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.apply import apply, cast, check_dtype, evaluate, require_numbers, result_dtype, type_of
from ctrlgrad.frontend.carry import Elements
from ctrlgrad.frontend.checks import is_array
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.loops import map as map_rows
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir import Builder, TensorType
from ctrlgrad.ops.term import scalar_index
from ctrlgrad.source import here
from ctrlgrad.tree import NAMESPACE


class TensorArray(Elements):
    """An array of tensors of one dtype and shape, written and read slot by slot in loops and branches.

    Updates return a new array and cost one row: the old one is overwritten where it is not used again. Outside of a
    function an update also copies the list of the slots, 8 bytes each, and shares the rows.

    Args:
        dtype: of every element.
        size: the number of slots, an int or a traced scalar; None for an array that grows by writing at
            index `size()`.
        element_shape: the shape of an element, None for an unknown dimension; left out, it is that of the
            first element written.
        rewritable: whether a slot may be written more than once. Otherwise a second write is an error when it
            happens: each value then has one origin.

    Slots that were never written hold zeros, and may be read.

    >>> def squares(n):
    ...     array = cg.TensorArray("float64", size=n)
    ...     square = lambda i, a: a.write(i, (i * i).astype("float64"))
    ...     return cg.fori_loop(0, n, square, array).stack()
    >>> cg.function(squares)(4)
    array([0., 1., 4., 9.])
    """

    @explains_calls
    def __init__(
        self,
        dtype: Any,
        size: Any = None,
        element_shape: Sequence[int | None] | None = None,
        *,
        rewritable: bool = False,
    ) -> None:
        self.dtype = as_dtype("TensorArray", dtype)
        check_dtype(self.dtype)
        self.requested_size: Any = None if size is None else _checked_size(size)
        self.grows = size is None
        self.rewritable = rewritable
        self.element = None if element_shape is None else TensorType(self.dtype, tuple(element_shape))
        self._stack: Any = None if self.element is None else self._new(self.element)

    def _new(self, element: TensorType) -> Any:
        builder = trace.current()
        size = [] if self.requested_size is None else [cast(self.requested_size, np.int64)]
        attrs = {"element": element}
        if builder is None:
            builder = Builder()
            inputs = [builder.input(type_of(n)) for n in size]
            graph = builder.finish([builder.emit("stack_new", inputs, attrs)])
            return evaluate(graph, size)[0]
        operands = [n.value if isinstance(n, Tensor) else builder.constant(n) for n in size]
        return Tensor(builder, builder.emit("stack_new", operands, attrs, source=here(), hint="array"))

    def __getitem__(self, index: Any) -> Any:
        raise TypeMismatchError(
            "TensorArray: it is not indexed",
            expected="array.read(index), or array.stack()[index]",
            got=f"array[{index!r}]",
            hint="array = array.write(index, value) gives the array with a slot written; size() is their number",
        )

    def with_element(self, element: TensorType) -> TensorArray:
        """The same empty array with its element known."""
        return TensorArray(self.dtype, self.requested_size, element.shape, rewritable=self.rewritable)

    def _with_stack(self, stack: Any, element: TensorType) -> TensorArray:
        result = object.__new__(TensorArray)
        # A traced size belongs to the place where it was made; from here on the stack knows its length.
        size = None if isinstance(self.requested_size, Tensor) else self.requested_size
        result.dtype, result.requested_size, result.grows = self.dtype, size, self.grows
        result.rewritable, result.element, result._stack = self.rewritable, element, stack
        return result

    # A pytree: one leaf, the stack, once the element is known.

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        if self.element is None:
            traced = isinstance(self.requested_size, Tensor)
            children = (self.requested_size,) if traced else ()
            size = None if traced else self.requested_size
            return children, (self.dtype.name, self.grows, self.rewritable, None, size)
        size = None if isinstance(self.requested_size, Tensor) else self.requested_size
        return (self._stack,), (self.dtype.name, self.grows, self.rewritable, self.element, size)

    @classmethod
    def tree_unflatten(cls, metadata: Any, children: Any) -> TensorArray:
        dtype, grows, rewritable, element, size = metadata
        result = object.__new__(cls)
        result.dtype, result.grows, result.rewritable = np.dtype(dtype), grows, rewritable
        result.element, result.requested_size = element, size
        (child,) = children or (None,)
        if element is None:
            result.requested_size, result._stack = size if child is None else child, None
        else:
            result._stack = child
        return result

    def _need_stack(self, operation: str) -> Any:
        if self.element is None:
            raise TracingError(
                f"TensorArray.{operation}: nothing was written yet and no element_shape was given",
                expected="an array whose element shape is known",
                got=f"TensorArray({self.dtype.name!r}) without element_shape",
                hint="keep what .write returns, array = array.write(i, x),\n"
                "or pass element_shape=... when making the array",
            )
        return self._stack

    def size(self) -> Any:
        """The number of slots, an int64 scalar."""
        if self.element is None:
            return np.int64(0) if self.grows else self.requested_size
        return apply("stack_length", [self._stack])

    def write(self, index: Any, value: Any) -> TensorArray:
        """The array with `value` in slot `index`. An array without a size grows by one at index `size()`.

        Raises, when it runs: IndexOutOfRangeError for an index that is no slot; ExecutionError for a slot that was
        written already, unless the array is `rewritable`.
        """
        require_numbers("TensorArray.write", index, value)
        given = type_of(value)
        assert isinstance(given, TensorType)
        value = value if given.dtype == self.dtype else self._cast(value, given)
        element = self.element or TensorType(self.dtype, given.shape)
        stack = self._new(element) if self.element is None else self._stack
        if not element.accepts(TensorType(self.dtype, given.shape)):
            raise TypeMismatchError(
                "TensorArray.write: the value is not an element",
                expected=str(element),
                got=str(given),
                hint="give element_shape with None for the dimensions that differ",
            )
        attrs = {"grow": self.grows} if self.rewritable else {"grow": self.grows, "once": True}
        return self._with_stack(apply("stack_write", [stack, _index("write", index), value], attrs), element)

    def push(self, value: Any) -> TensorArray:
        """The array with one more slot at its end that holds `value`."""
        if not self.grows:
            raise TracingError(
                "TensorArray.push: the array has a fixed size",
                expected="an array that grows",
                got=f"an array of size {self.requested_size}",
                hint="make it without size=, or use write",
            )
        require_numbers("TensorArray.push", value)
        given = type_of(value)
        assert isinstance(given, TensorType)
        value = value if given.dtype == self.dtype else self._cast(value, given)
        element = self.element or TensorType(self.dtype, given.shape)
        stack = self._new(element) if self.element is None else self._stack
        return self._with_stack(apply("stack_push", [stack, value]), element)

    def _cast(self, value: Any, given: TensorType) -> Any:
        if result_dtype(value, np.zeros((), self.dtype)) != self.dtype:
            raise self._misfit("write", given)
        return cast(value, self.dtype)

    def _misfit(self, operation: str, given: TensorType) -> TypeMismatchError:
        return TypeMismatchError(
            f"TensorArray.{operation}: the value's dtype does not fit",
            expected=self.dtype.name,
            got=given.dtype.name,
            hint=f"make the TensorArray of {given.dtype.name}, or cast the value: "
            f"ctrlgrad.numpy.asarray(value).astype({self.dtype.name!r})",
        )

    def read(self, index: Any) -> Any:
        """Slot `index`; zeros where nothing was written."""
        require_numbers("TensorArray.read", index)
        return apply("stack_read", [self._need_stack("read"), _index("read", index)])

    def stack(self) -> Any:
        """All slots as one tensor, `[size, *element_shape]`."""
        return apply("stack_to_tensor", [self._need_stack("stack")], {"size": self._known_size()})

    def _known_size(self) -> int | None:
        known = isinstance(self.requested_size, int | np.integer) and not self.grows
        return int(self.requested_size) if known else None

    def gather(self, indices: Any) -> Any:
        """The slots at some indices as one tensor, `[len(indices), *element_shape]`; it costs these slots alone.

        Args:
            indices: integers, rank 1; a slot may be named more than once.

        >>> cg.TensorArray("float64").unstack(np.array([1.0, 2.0, 3.0])).gather([2, 0, 2])
        array([3., 1., 3.])
        """
        require_numbers("TensorArray.gather", indices)
        self._need_stack("gather")
        t = type_of(indices)
        if not isinstance(t, TensorType) or t.rank != 1 or (dtype_kind(t.dtype) not in "iu" and t.shape != (0,)):
            raise TypeMismatchError(
                "TensorArray.gather: the indices are no list of integers",
                expected="i64[n]",
                got=str(t),
                hint="use read for one index, and reshape an array of indices to rank 1",
            )
        return map_rows(self.read, cast(indices, np.int64))

    def concat(self) -> Any:
        """All slots joined along their first axis: `[rows of all slots, *element_shape[1:]]`.

        The slots may differ in how many rows they have, where `element_shape` says so by None; each must have been
        written then.

        >>> array = cg.TensorArray("float64", element_shape=(None,))
        >>> array.push(np.array([1.0])).push(np.array([2.0, 3.0])).concat()
        array([1., 2., 3.])
        """
        stack = self._need_stack("concat")
        assert self.element is not None
        if self.element.rank == 0:
            raise ShapeError(
                "TensorArray.concat: the elements are scalars",
                expected="elements of rank 1 or more",
                got=str(self.element),
                hint="use stack()",
            )
        first, *rest = self.element.shape
        if first is not None:
            whole = self.stack()
            known = self._known_size()
            count = (self.size() if known is None else known) * first
            sizes = [FUNCTIONS["__dim__"](whole, axis + 2) if d is None else d for axis, d in enumerate(rest)]
            return FUNCTIONS["reshape"](whole, (count, *sizes))
        rows = apply("stack_rows", [stack], {"axis": 0})
        return apply("stack_concat", [stack, rows], {"axis": 0, "size": None})

    def unstack(self, tensor: Any) -> TensorArray:
        """An array whose slots are the rows of a tensor: they count as written."""
        require_numbers("TensorArray.unstack", tensor)
        t = type_of(tensor)
        assert isinstance(t, TensorType)
        if not can_cast(t.dtype, self.dtype, "same_kind"):
            raise self._misfit("unstack", t)
        stack = apply("stack_from_tensor", [cast(tensor, self.dtype)])
        return self._with_stack(stack, TensorType(self.dtype, t.shape[1:]))

    def __repr__(self) -> str:
        return f"TensorArray({self.dtype.name!r}, element={self.element})"


def _checked_size(size: Any) -> Any:
    """A number of slots: an int, or an integer that only the run knows."""
    t = type_of(size) if is_array(size) else None
    is_integer = isinstance(t, TensorType) and t.rank == 0 and dtype_kind(t.dtype) in "iu"
    if is_integer and (isinstance(size, Tensor) or size >= 0):
        return size
    raise TypeMismatchError(
        "TensorArray: the size is no number of slots",
        expected="an integer of 0 or more, or None for an array that grows",
        got=repr(size),
        hint="TensorArray(dtype, size, element_shape): n elements of shape (3,) are size=n, element_shape=(3,)",
    )


_register: Any = optree.register_pytree_node
_register(TensorArray, TensorArray.tree_flatten, TensorArray.tree_unflatten, namespace=NAMESPACE)


def _index(operation: str, index: Any) -> Any:
    scalar_index(f"TensorArray.{operation}", "the index", type_of(index))
    return index if isinstance(index, Tensor) else cast(index, np.int64)
