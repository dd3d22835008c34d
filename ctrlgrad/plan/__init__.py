"""Plans: what compiling engines decide about a whole graph, as data, before any code is printed."""

# Passes from plan to plan, in their order. None changes what a plan computes but for rounding: each can be left out.
PASSES = ("accumulate", "fuse", "contract", "lay_out_columns", "pack_constants")

__all__ = ["PASSES"]
