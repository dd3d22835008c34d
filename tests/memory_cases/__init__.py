"""What the tests of the memory manager share: a loop to drive, a model of how long it takes, and a device whose steps a
scheduler chooses.
"""
