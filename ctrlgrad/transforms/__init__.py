"""Transforms: Python functions to Python functions, by way of graphs. `ctrlgrad` itself hands them out.

The modules, in reading order:

    tracing       the common part: a graph of the function, its arguments checked and named
    grad          `grad`, `vjp`, `jvp`, `linearize`, and matrices of derivatives
    vmap          `vmap`, `vectorize` and `custom_vmap`
    custom_calls  `custom_jvp`, `custom_vjp`, `custom_gradient` and `closure_convert`
    implicit      `custom_root` and `custom_linear_solve`
    checkpoint    `checkpoint`
"""
