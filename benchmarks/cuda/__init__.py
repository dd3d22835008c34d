"""The CUDA engine on a card: what it can do, an LSTM's training step against its peers, and long sequences in a budget.

    python -m benchmarks.cuda --output STEM

writes STEM.json and STEM.txt after each case, so a run that is cut off keeps what it has; with `--seconds N` no case
begins after so many. First each mechanism computes something small, held against the reference engine
(`mechanisms.py`), then come the figures (`lstm.py`, `scalar.py`). A case that fails is a row that says so, and the
next case begins.
"""
