"""Transforms: Python functions to Python functions, by way of graphs. `ctrlgrad` itself hands them out."""
