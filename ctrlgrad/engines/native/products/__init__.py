"""Matrix products, small linear systems and the pool of threads that shares their work, as native routines.

The modules, in reading order:

    library, routines         the process's routines, each an object that is compiled when it is first needed
    function, scalars         the writer of a routine, and floats with Python's operators
    real                      float types and their vectors
    pool                      threads that share the work of one call, and how they wait
    whole, shared             arguments of all products, and products cut into parts for all threads
    blocks, kernels           products made of tiles, and the kernels that a product calls
    pack, tiles               operands copied into panels, and a tile in registers
    vector, times             a matrix by a vector
    fields                    types of triangular systems, complex numbers among them
    triangular, substitution  triangular systems of any size, and their diagonal blocks
    lu, solves, cholesky      linear systems by LU with pivoting, large and small, and Cholesky factors
    reflectors, spectra       QR by reflectors, and eigenvalues and singular values of small matrices
    transforms                discrete Fourier transforms
"""
