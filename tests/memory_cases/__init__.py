"""What the tests of the memory manager share: a loop to drive, and a device whose steps a scheduler chooses."""
