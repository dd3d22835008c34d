"""What the tests of the memory manager share: a loop to drive, and a model of how long it takes."""
