"""The experiments of the paper on dynamic control flow, in ctrlgrad's dataflow runtime.

    cells       a loop that is spread over devices, a cell of its state on each: iterations per second by devices
    pipeline    two products an iteration, one on each of two devices: speed by how many iterations may be in flight
    layers      a training step of a two-layer LSTM, a layer on each of two devices
    learning    deep Q-learning in one graph, or driven from Python: examples/deep_q_learning.py

Dynamic against static unrolling of an LSTM is in `benchmarks.recurrent`.

In `pipeline` a device is a core: products are single-threaded, so that two devices have twice the means of one and no
more. In `layers` two devices are compared with the native engine on all cores.

Source: Yu et al., "Dynamic control flow in large-scale machine learning", EuroSys 2018, section 6.
"""
