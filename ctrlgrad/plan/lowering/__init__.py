"""From a graph to a plan, a family of ops per file: steps over values, not fused and not placed yet."""
