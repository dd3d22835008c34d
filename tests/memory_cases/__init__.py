"""Helpers of the memory manager's tests: a loop to drive, and a model of its duration."""
