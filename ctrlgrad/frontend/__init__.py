"""From Python functions to graphs: traced tensors, array functions, and the constructs that have regions."""
