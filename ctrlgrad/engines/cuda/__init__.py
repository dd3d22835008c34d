"""The CUDA engine: values on the device, control on the host.

A region of a graph becomes a list of steps. Elementwise nodes of one shape are one kernel, products are cuBLAS's,
other ops are functions of the array library, and what the library lacks goes through the host. Everything that meets
the device does so through an `ArrayLibrary`: CuPy on a card, a strict stand-in on NumPy in the tests.
"""
