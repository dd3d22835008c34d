"""The whole table: what the files of its families have put in."""

from ctrlgrad.interop.torch import arranging, elementwise, networks  # noqa: F401
from ctrlgrad.interop.torch.operators import REFUSED, TABLE, arguments, find, name_of, promoted, unsupported

__all__ = ["REFUSED", "TABLE", "arguments", "find", "name_of", "promoted", "unsupported"]
