"""Memory of the stand-in: launches may name bytes of live arrays only."""

from __future__ import annotations

import numpy as np
import pytest
from instruments.driver import Driver
from instruments.stand_in import StandInArray


def test_bytes_are_somebodys_as_long_as_the_array_lives() -> None:
    driver = Driver(lambda inputs, outputs: None)
    array = StandInArray(np.arange(8.0))
    address = driver.address(array)
    for _ in range(2):
        np.testing.assert_array_equal(driver._array(address + 16, "float64", [3, 2], [8, 16]), [[2, 4], [3, 5], [4, 6]])
        with pytest.raises(AssertionError, match="no memory of anybody's"):
            driver._array(address + 16, "float64", [7], [8])
    del array
    with pytest.raises(AssertionError, match="no memory of anybody's"):
        driver._array(address + 16, "float64", [1], [8])
