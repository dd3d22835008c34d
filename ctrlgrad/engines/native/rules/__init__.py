"""How each op is written in generated code, a file per family; importing this package fills the table."""

from ctrlgrad.engines.native.rules import control, indexing, outside, products, reductions, stacks, views
from ctrlgrad.engines.native.rules.table import RULES

__all__ = ["RULES", "control", "indexing", "outside", "products", "reductions", "stacks", "views"]
