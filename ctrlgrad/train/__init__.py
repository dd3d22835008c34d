"""The main job: a character model trained on lines of text, its loss one data-dependent loop.

In order: `settings` (what a run is), `corpus` (text to symbols), `model` (the loss and the sampler, written with
the public names), `verification` (the first gradient against JAX), `checkpoint`, `metrics` (what a run leaves on
disk), `trainer` (the steps).
"""
