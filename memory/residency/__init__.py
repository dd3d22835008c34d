"""Residency: in which tiers a block is, and what moves it: copies out, evictions, fetches ahead, waits."""
