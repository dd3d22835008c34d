"""Replay of placed plans, with every access checked.

`steps` has the reads and writes of each step, in order, `memory` what lies where, by name and iteration, and
`decisions` checks how the plan is to run: with these `ctrlgrad.plan.checker` replays a plan without data.
"""
