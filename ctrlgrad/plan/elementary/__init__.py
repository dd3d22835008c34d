"""Elementary functions as expressions of primitives."""
