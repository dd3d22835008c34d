"""The reference engine: the definition of what every graph means, in NumPy."""

from ctrlgrad.engines.reference import control_kernels
from ctrlgrad.engines.reference.finite import FiniteCheck
from ctrlgrad.engines.reference.interpreter import run_graph
from ctrlgrad.engines.reference.run import Counters, Run

__all__ = ["Counters", "FiniteCheck", "Run", "control_kernels", "run_graph"]
