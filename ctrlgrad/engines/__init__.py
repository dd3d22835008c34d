"""Engines: each runs any graph; all agree with the reference engine."""
