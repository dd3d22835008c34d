"""Replay of placed plans, with every access checked.

`steps` has the reads and writes of each step, in order, and `memory` what lies where, by name and iteration: with
these `ctrlgrad.plan.checker` replays a plan without data.
"""
