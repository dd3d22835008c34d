"""Iterations of a loop as a launch list that is prepared once: no Python runs between one launch and the next.

The body of a loop on the card is read once (`reading`) for each set of input shapes, into a `PreparedBody`
(`body`, `model`):

- *launches*: kernels and products, each with the views that it reads and writes;
- *buffers*: a carried array has one, as in inner loops. An iteration writes its value there at once if all launches
  that read the value before come earlier; else the value is copied at the end. Temporaries lie in one memory; those
  that are not alive at the same time share bytes (`placement`);
- *words*: numbers that move. The card has their values from the beginning of a run of iterations, and a counter of the
  run's iterations. `word + counter * step` is the address of a stack's row (a slot), the offset of an array's row, or
  an integer of the host that changes by the same step in each iteration. The last launch of an iteration adds 1 to the
  counter.

A branch (`body`) is a list for each side; the card decides which list runs. A stack (`ops`) is arrays, or rows that are
pushed or popped; their memory is in `binding`. The number of rows is an integer that goes by steps, like any other, as
long as each iteration has the same number. Where sides differ in the rows that they push or pop, each pass counts its
rows on the card, and the host reads the count after the run. A run also ends where another iteration might have no
memory for its rows.

An inner loop (`body`) is a list that repeats. Its trip count is known to the host beforehand, or is a number on the
card (a trip count that was popped), or follows from a predicate that the card computes each time. A counter on the card
counts its iterations from the loop's beginning, and host integers move by it. A stack that begins and ends within an
iteration is an array (`ops`).

A binding (`binding`) is a list in the processor's memory (`entries`): for each launch the function, the grid, and
packed arguments. The arguments stay the same while a loop runs, except those of the first launch. It writes
counters and words, so everything that changes with a chunk (the addresses of its blocks) is in its arguments. The
list is kept from run to run of a loop. Addresses are named in it (`entries`) and set when a run begins; memory on the
card is given back when the run ends. A function in machine code (`walker`) goes through the list once per iteration,
and calls functions of the driver and of cuBLAS by their addresses.

A run of iterations is as long as everything moves by steps: until a stack's block is full or empty, a chunk ends,
or an index would leave its axis (`runner`; `binding` has the memory of rows). Iterations between runs, and loops with
bodies that cannot be prepared, run step by step; `explain` says which, and why. The choice of prepared iterations
depends only on blocks and numbers of the host, or it is recorded, so a chunk that is run again asks for the same
blocks.

A long run is a CUDA graph (`graphs`): an iteration in a while node, launched once; the predicate can end it as well. It
is captured from the list, and the binding keeps the most recent ones, one for each state of the list and each place of
the memory of its products.
"""
