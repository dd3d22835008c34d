"""Iterations of a loop as a list of launches that is prepared once: no Python runs between one launch and the next.

The body of a loop on the card is read once, by the shapes that it runs with (`body`), into a `PreparedBody` (`model`):

- *launches*, kernels and products, each with the views that it reads and writes;
- *buffers*: a carried array has two, which iterations read and write in turn, or one that is updated in place.
  Temporaries lie in one memory, and in buffers of carried arrays while nothing is in these; those that are not needed
  together share bytes (`placement`);
- *words*: numbers that move. The card has them as they are when a run of iterations begins, behind a counter of that
  run's iterations: `word + counter * step` is the address of a row of a stack (a slot), how far a row of an array is
  from the first one, or an integer of the host's that goes by the same step in each iteration. The last launch of an
  iteration adds 1 to the counter.

A read by indices from the card is a kernel, and an update by them is several (`ctrlgrad.engines.cuda.indexing`). An
index that is out of range is noted in the run's flag, with the number by which the run knows the node: both are
arguments, set when a run begins.

A branch (`branches`) is a list for each side, of which the card says which one is gone through. Rows of a side lie by a
counter of its own, which the host reads when a run is over; a run ends, too, where another iteration might have no
memory for its rows.

A loop inside (`loops`) is a list too, which is gone through again and again: as often as the host knows beforehand, as
often as a number on the card says (a trip count that was popped), or as long as the card says. Its counters are on the
card: one counts since the loop began, by which numbers go, one ever since the run began, by which rows of stacks lie.
What it carries has one buffer each. A stack that begins and ends within an iteration is an array (`rows`).

Where such a loop pushes as often as the data says, the memory that its rows need is unknown before an iteration. They
lie by a counter that stops where there is none (the `slot`); a run that has pushed more than that is made again from
its beginning, with all the memory that it has turned out to need. Backwards the host has the trip counts, since it
knows the stack that they are popped off: then it knows for how many iterations there are rows. Where it does not, a run
that would have popped more rows than it has is made again too.

What is bound (`binding`) is a list in the processor's memory (`entries`): of each launch the function, the grid, and
packed arguments that stay as they are while a loop runs, but for those of the first launch: it writes counters and
words, so all that another chunk changes (the addresses of its blocks) is in its arguments. The list is kept from run to
run of a loop; addresses are named in it (`words`) and set when a run begins, and memory on the card is given back when
it ends. Iterations alternate between two halves of the list, by which of the two buffers of a carried array they read.
A function in machine code (`walker`) goes through the halves as often as there are iterations and calls the driver's
and the library's functions by their addresses.

A run of iterations is as long as everything moves by steps: until a stack's block is full or empty, a chunk ends, or
an index would leave its axis (`runner`; how often loops inside go on is `passes`', where rows lie `row_memory`'s). What
is in between, and loops with bodies that cannot be prepared, is run step by step; `explain` says which, and why. Which
iterations are prepared depends on nothing but blocks and numbers of the host, or is noted, so a chunk that is run again
asks for the same blocks.

Where a loop's end depends on data the masked iterations of a chunk are a run, and the predicate is read behind it. A
body that is not masked says behind each iteration whether there is another one (`Ending`).

A stack whose rows are read and written by index (`tables`) is two carried arrays while a loop runs: its rows, and marks
that say which of them were written. It becomes them before the first run, and a stack again at the loop's end. One that
an iteration makes, or that a loop inside carries, is two arrays too; what else it may be used as, `stack_forms` says.

A long run is a graph (`graphs`): pairs of iterations in a while node, launched once, which also ends where the
predicate says so. It is captured from the list (`captures`), and stays with the binding, which keeps a few of them: one
for each state of the list, and each place of its products' memory, of those that came last.
"""
