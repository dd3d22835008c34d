"""Types are made of what names a dtype and of numbers of any kind, and hold NumPy's dtypes and Python's integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ctrlgrad.ir import TensorType


@pytest.mark.parametrize("dtype", ["float32", np.float32, "f4", np.dtype("float32")])
@pytest.mark.parametrize("shape", [(2, None, 1), [2, None, 1], (np.int64(2), None, True)], ids=str)
def test_a_type_is_made_of_what_names_one(dtype: Any, shape: Any) -> None:
    made = TensorType(dtype, shape)
    assert made == TensorType(np.dtype(np.float32), (2, None, 1)) and str(made) == "f32[2,?,1]"
    assert isinstance(made.dtype, np.dtype) and type(made.shape) is tuple
    assert [type(d) for d in made.shape] == [int, type(None), int]
