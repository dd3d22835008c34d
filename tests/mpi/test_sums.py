"""Sums over ranks go on while the ranks compute."""

# The main thread makes no call of MPI between the beginning of the sums and the moment when they have ended.
BESIDE = """
import time
import numpy as np
from ctrlgrad.mpi.launch import join
from ctrlgrad.mpi.sums import Sums

world = join().world
ended = []
have_ended = world.have_ended
world.have_ended = lambda requests: ended.append(have_ended(requests)) or ended[-1]
sums = Sums(world)
for again in range(3):
    ended.clear()
    arrays = [np.full(1 << 20, world.rank + number, np.float32) for number in range(3)]
    for number, array in enumerate(arrays):
        sums.begin(number, array)
    assert sums.has_begun(2) and not sums.has_begun(3)
    deadline = time.monotonic() + 60
    while not any(ended):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    found = sums.finish()
    assert list(found) == [0, 1, 2] and not sums.has_begun(0)
    for number, array in found.items():
        np.testing.assert_array_equal(array, np.float32(sum(rank + number for rank in range(world.size))))
print("done")
"""


def test_sums_end_while_no_rank_waits_for_them(mpirun):
    ended = mpirun(3, BESIDE)
    assert ended.code == 0 and ended.stdout.count("done") == 3, ended.stderr


WAITING = """
import numpy as np
from ctrlgrad.mpi.launch import join
from ctrlgrad.mpi.sums import Sums

world = join().world
sums = Sums(world)
for again in range(200):
    arrays = [np.full(100 * number, world.rank * again, np.float64) for number in range(4)]
    for number in (3, 0, 2, 1):
        sums.begin(number, arrays[number])
    for number, array in sums.finish().items():
        assert array is arrays[number]
        np.testing.assert_array_equal(array, again)
print("done")
"""


def test_sums_that_are_waited_for_at_once(mpirun):
    ended = mpirun(2, WAITING)
    assert ended.code == 0 and ended.stdout.count("done") == 2, ended.stderr
