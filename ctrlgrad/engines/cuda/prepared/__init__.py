"""Iterations of a loop as a list of launches that is prepared once: no Python runs between one launch and the next.

The body of a loop on the card is read once, by the shapes that it runs with (`body`), into a `PreparedBody` (`model`):

- *launches*, kernels and products, each with the views that it reads and writes;
- *buffers*: a temporary has one for the whole loop; a carried array has two, which iterations read and write in turn,
  or one that is updated in place; no two values share one;
- *words*: numbers that move. The card has them as they are when a run of iterations begins, behind a counter of that
  run's iterations: `word + counter * step` is the address of a row of a stack (a slot), how far a row of an array is
  from the first one, or an integer of the host's that goes by the same step in each iteration. The last launch of an
  iteration adds 1 to the counter.

What is bound (`binding`) is a list in the processor's memory: of each launch the function, the grid, and packed
arguments that stay as they are, but for those of the first launch: it writes counter and words, so all that another
chunk changes (the addresses of its blocks) is in its arguments. Iterations alternate between two halves of the list, by
which of the two buffers of a carried array they read. A function in machine code (`walker`) goes through the halves as
often as there are iterations and calls the driver's and the library's functions by their addresses.

A run of iterations is as long as everything moves by steps: until a stack's block is full or empty, a chunk ends, or
an index would leave its axis (`runner`). What is in between, and loops with bodies that cannot be prepared, is run step
by step; `explain` says which, and why. Which iterations are prepared depends on nothing but blocks and numbers of the
host, so a chunk that is run again launches the same.

Where a loop's end depends on data the masked iterations of a chunk are a run, and the predicate is read behind it.
"""
