"""The array functions: `ctrlgrad.numpy` is their public face, and imports all modules here, which registers them.

Each works on traced tensors and on concrete arrays alike; see `ctrlgrad.frontend.apply.apply`. The modules:

    promote                     operands and their dtypes, sizes and axes, and the raw ops that move dimensions
    elementwise, composed       elementwise ops, and functions composed of elementwise ops
    reduction, statistics       reductions along axes, order statistics and counts
    keys                        keys of `x[...]`
    indexing, choosing          elements read and changed by keys, and chosen by conditions
    manipulation, sorting       dimensions moved, added and dropped; sorting and searching
    creation, ranges, windows   arrays from shapes, ranges and windows
    linalg, matrices            products, and the names of `ctrlgrad.numpy.linalg`
    decompositions              linear systems and factorisations
    fourier, numerics           discrete Fourier transforms; interpolation, integrals, convolutions
    ufunc_methods               methods and keywords of a `ufunc`
"""
