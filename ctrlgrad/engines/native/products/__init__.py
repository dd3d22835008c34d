"""Matrix products, small solves and the pool of threads that shares their work, as native routines."""
