"""Profile: what a manager did, as data; counted, judged, summed up and drawn.

`recorder` writes the `records` of a run. `checker` replays them and proves that the manager was sound, `summary` has
them in numbers, and `pictures` draws them.
"""
