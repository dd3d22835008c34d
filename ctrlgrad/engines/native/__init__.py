"""The native engine: plans printed as LLVM, compiled by llvmlite, run by one native call per call of a graph."""
