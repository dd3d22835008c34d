"""Reductions as kernels: each by a fixed tree, so that a chunk that is run again has the same bits.

What is computed of each element is an expression of the plan's, and so is how two states become one (`combining`). A
state is what is known of some of the elements: their sum so far, or an extreme and where it lies. `tree` says, by the
shape alone, how many threads share the elements of one result: each goes through at most `SERIAL` of them (the error
of a sum grows with that and with the depth of the tree, not with the number of elements), and a tree in shared memory
makes their states one. Where that is not all, the blocks' states go to memory, and another kernel reduces those
(`stages`); of a scan it scans them, and each block goes on from what is before its part. Neighbouring threads read
neighbouring elements, whether the last axis is reduced or stays.

Sizes and strides are parameters (`kernel_text`): one compiled kernel serves all shapes of a rank.
"""
