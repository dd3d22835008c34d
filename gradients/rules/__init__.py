"""Derivative rules, file by file as in `ctrlgrad.ops`; importing them fills `ctrlgrad.gradients.table`."""

from ctrlgrad.gradients.rules import arrays, linalg

__all__ = ["arrays", "linalg"]
