"""Small programs, each written once for ctrlgrad and for JAX: what a `Library` has is named alike in both."""
