"""ONNX models as functions of this library.

`reader` reads a graph node by node, and `operators` has the table of operators. Its entries are in `numbers`
(elementwise, reductions, products), `arrays` (arranging, indexing, sampling), `layers` (networks and spectra) and
`control` (loops, branches, recurrent cells).
"""
