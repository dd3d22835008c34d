"""Instruments of the tests for the engines and the memory manager.

| to | module |
| --- | --- |
| compare results | `comparing` |
| have some points of a table in each run, and all of them when asked for | `tables` |
| judge each plan before it runs (`ctrlgrad.plan.checking` is the judge) | `checked` |
| compute a placed plan with NumPy in its places, and check every access | `plan_machine`, `plan_data` |
| numbers of threads and widths of vectors that sizes are tried for | `machines` |
| run a graph in machine code, and by nothing else | `natively` |
| run a graph on devices by chance, messages late, nodes in any order; count frames and messages | `dataflow_runs` |
| run what CUDA kernels say without a card | `stand_in`, `stand_in_runs`, in memory sessions `stand_in_sessions` |
| hold copies to a card's rules: addresses, streams, what lives | `fake_cupy` |
| hold a memory device to its protocol | `device_rules` |
| a memory device without hardware: virtual time, faults by number | `simulated` |
| give each step of a device to a scheduler, and walk all schedules | `stepping` |
| start programs in processes that have ctrlgrad imported | `warm` |
| have a session's actions replayed by the checker, and nothing left at its end | `sessions` |
"""
