"""Reads and updates by indices that lie on the card, as kernels: step by step, and in prepared lists.

Which element an index names is known on the card alone, so what can be said before is where the elements lie that
indices of zero name, and how far one more moves along an axis (`keys`). A read is one kernel. An update is several
(`stages`), since positions may repeat and atomic additions come in any order: a chunk that is run again would have
other bits. One thread does all that happens to one element, in the order in which positions are listed: the bits are
those of `numpy.add.at`. Of few positions (`FEW`) each thread looks at all for those like its own, and the update is
one launch. More are sorted, equal ones keeping their order.

The sort is one of ranks, for any number n of positions. Each thread counts, in a run of `RUN` positions, those before
its own; then runs are merged in pairs, where a thread searches the other run by halves: n * (RUN + log(n) ** 2) steps
in all, and log2(n / RUN) launches. What one thread adds up is as long as the longest list of equal positions.

An index that is out of range is noted in the run's flag; the host raises the error at the next place where it waits.
Sizes and strides are parameters (`kernel_text`): one compiled kernel serves all shapes of a rank.
"""
