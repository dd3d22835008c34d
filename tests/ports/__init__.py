"""Programs of JAX and their ports: read twice, run twice, compared."""
