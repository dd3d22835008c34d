"""Functions of this library as functions of PyTorch."""
