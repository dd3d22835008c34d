"""The array functions: `ctrlgrad.numpy` is their public face, and imports all modules here, which registers them.

Each works on traced tensors and on concrete arrays alike; see `ctrlgrad.frontend.apply.apply`. All modules here use the
words of `promote`: operands and their dtypes, sizes and axes, and the raw ops that move dimensions.
"""
