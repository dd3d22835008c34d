"""From a graph to a plan: a family of ops per file. `lower` gives steps over values, not yet fused and not yet placed."""

from ctrlgrad.plan.lowering.lower import ArgumentShape, Unsupported, lower

__all__ = ["ArgumentShape", "Unsupported", "lower"]
