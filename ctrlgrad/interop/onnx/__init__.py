"""ONNX models as functions of this library: a reader of graphs, and a table of operators."""
