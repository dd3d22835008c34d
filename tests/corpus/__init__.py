"""Small programs with data-dependent control flow, each beside its twin in plain Python and NumPy."""
