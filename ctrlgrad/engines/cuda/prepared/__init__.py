"""Iterations of a loop as a launch list that is prepared once: no Python runs between one launch and the next.

The body of a loop on the card is read once (`reading`) for each set of input shapes, into a `PreparedBody`
(`body`, `model`):

- *launches*: kernels and products, each with the views that it reads and writes;
- *buffers*: a carried array has two, which iterations read and write in turn, or one that is updated in place.
  Temporaries lie in one memory, or in buffers of carried arrays that are free at the time; those that are not alive at
  the same time share bytes (`placement`);
- *words*: numbers that move. The card has their values from the beginning of a run of iterations, and a counter of the
  run's iterations. `word + counter * step` is the address of a stack's row (a slot), the offset of an array's row, or
  an integer of the host that changes by the same step in each iteration. The last launch of an iteration adds 1 to the
  counter.

A gather by indices from the card is one kernel, and an update by them is several
(`ctrlgrad.engines.cuda.indexing`). An index that is out of range is noted in the run's flag, together with a number
that the run has given to the node. Both are arguments, set when a run begins.

A branch (`body`) is a list for each side; the card decides which list runs. Rows that a side pushes lie by a
counter of the side, which the host reads after the run. A run also ends where another iteration might have no
memory for its rows.

An inner loop (`body`) is a list that repeats. Its trip count is known to the host beforehand, or is a number on
the card (a trip count that was popped), or follows from a predicate that the card computes each time. Its counters
are on the card. One counts from the loop's beginning, and host integers move by it; the other one counts from the
run's beginning, and rows of stacks move by it. A carry of an inner loop has one buffer. A stack that begins and
ends within an iteration is an array (`ops`).

Where the data decides how often an inner loop pushes, the memory that its rows need is unknown before an iteration.
The rows lie by a counter (the `slot`) that stops where the memory ends. A run that has pushed more is repeated from
its beginning, with all the memory that it turned out to need. In the backward pass the host has the stack of trip
counts, so it knows for how many iterations there are rows. Where it does not know, a run that would have popped
more rows than it has is repeated too.

A binding (`binding`) is a list in the processor's memory (`entries`): for each launch the function, the grid, and
packed arguments. The arguments stay the same while a loop runs, except those of the first launch. It writes
counters and words, so everything that changes with a chunk (the addresses of its blocks) is in its arguments. The
list is kept from run to run of a loop. Addresses are named in it (`entries`) and set when a run begins; memory on the
card is given back when the run ends. Iterations alternate between two halves of the list, one for each of the two
buffers of carried arrays. A function in machine code (`walker`) goes through the halves once per iteration, and
calls functions of the driver and of cuBLAS by their addresses.

A run of iterations is as long as everything moves by steps: until a stack's block is full or empty, a chunk ends,
or an index would leave its axis (`runner`; `model.Passes` has the trip counts of inner loops, `binding` the memory of
rows). Iterations between runs, and loops with bodies that cannot be prepared, run step by step; `explain` says
which, and why. The choice of prepared iterations depends only on blocks and numbers of the host, or it is recorded,
so a chunk that is run again asks for the same blocks.

Where a loop's end depends on data, the masked iterations of a chunk are one run, and the predicate is read after
it. A body that is not masked computes after each iteration whether there is another one (`Ending`).

A stack whose rows are read and written by index (`ops`) is two carried arrays while a loop runs: its rows, and
marks that say which rows were written. It is converted before the first run, and back at the loop's end. A stack
that an iteration makes, or that an inner loop carries, can be two arrays too; `ops` has its other forms.

A long run is a CUDA graph (`graphs`): pairs of iterations in a while node, launched once; the predicate can end it
as well. It is captured from the list, and the binding keeps the most recent ones, one for each state
of the list and each place of the memory of its products.
"""
