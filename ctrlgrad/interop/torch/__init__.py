"""PyTorch's functions and modules as functions of this library, and functions of this library in PyTorch.

The modules, in reading order:

    module       a function or module of PyTorch, traced
    tracing      PyTorch's own code run on traced tensors, operator by operator
    values       tensors of PyTorch that hold values of a trace
    operators    the table of ATen's operators; `entries` loads its families
    elementwise  elementwise operators, reductions and products
    arranging    operators that make, move, pick and write numbers
    networks     convolutions, pooling, normalisation, attention, losses, recurrent layers
    control      `torch.cond`, `torch.while_loop`, `scan`, `associative_scan`, `map`
    function     a function of this library that takes tensors of PyTorch
    tensors      tensors as NumPy's arrays and back, over the same memory
"""
