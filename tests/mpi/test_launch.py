"""Number of ranks that were started, from the variables that each launcher sets."""

import pytest

from ctrlgrad.mpi.launch import Launch, launched

# Variables of processes under `srun -n 4`, and of a batch script.
SRUN = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}
BATCH = {"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_JOB_ID": "7"}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "1", "PMIX_RANK": "1"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (OPEN_MPI, Launch(1, 3)),
        ({"PMI_SIZE": "3", "PMI_RANK": "2"}, Launch(2, 3)),
        ({"MV2_COMM_WORLD_SIZE": "3", "MV2_COMM_WORLD_RANK": "0"}, Launch(0, 3)),
        ({"FLUX_JOB_SIZE": "2", "FLUX_TASK_RANK": "1"}, Launch(1, 2)),
        (SRUN, Launch(2, 4)),
        ({**SRUN, "PMIX_RANK": "2"}, Launch(2, 4)),
        ({**SRUN, "PMI_SIZE": "4", "PMI_RANK": "2"}, Launch(2, 4)),
        # mpirun starts its daemons by srun: their variables are there too.
        ({**SRUN, **OPEN_MPI}, Launch(1, 3)),
        ({**SRUN, "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, None),
        (BATCH, None),
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, None),
        ({"PMIX_RANK": "2"}, Launch(2, None)),
        ({"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0"}, None),
        ({}, None),
    ],
)
def test_launchers_are_recognised(environment, expected):
    assert launched(environment) == expected


WITHOUT_SIZE = """
import os
for name in ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"):
    del os.environ[name]
import ctrlgrad as cg
from ctrlgrad.mpi.launch import launched, number_of_ranks

assert launched().size is None

@cg.function(engine="dataflow")
def f(x):
    with cg.device("/rank:1/cpu:0"):
        y = x * 2.0
    return y + 1.0

print(number_of_ranks(), launched().rank, float(f(3.0)))
"""


def test_a_launcher_that_does_not_say_how_many_there_are(mpirun):
    ended = mpirun(2, WITHOUT_SIZE)
    assert ended.code == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == ["2 0 7.0", "2 1 7.0"]


# Rank 1 does something before the end, which rank 0 waits for in a call; `f` is over both ranks.
ENDINGS = """
import os, sys
import ctrlgrad as cg
from ctrlgrad.mpi.launch import launched

@cg.function(engine="dataflow")
def f(x):
    with cg.device("/rank:1/cpu:0"):
        y = x * 2.0
    return y + 1.0

def fail():
    raise ValueError("of my own")

assert float(f(3.0)) == 7.0
if launched().rank == 1:
    what = sys.argv[1]
    if what == "caught":
        try:
            fail()
        except ValueError as error:
            sys.last_value = error  # as pytest does, and a prompt
    elif what == "exit":
        sys.exit(0)
    elif what == "gone":
        os._exit(0)
    elif what == "error":
        fail()
print(float(f(5.0)))
"""


def test_an_error_that_the_program_catches_ends_no_rank(mpirun):
    ended = mpirun(2, ENDINGS, "caught")
    assert ended.code == 0 and ended.stdout.splitlines() == ["11.0"] * 2, ended.stderr


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("exit", "rank 1 has ended its program, and rank 0 waits for it"),
        ("gone", "Error: rank 1 of 2 has died"),
        ("error", "Error: on rank 1: ValueError; all ranks stop"),
    ],
)
def test_a_rank_that_ends_while_another_one_waits_ends_it(mpirun, what, said):
    ended = mpirun(2, ENDINGS, what)
    assert ended.code != 0 and ended.stderr.count(said) == 1 and ended.stdout == "", ended.stderr
