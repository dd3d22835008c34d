"""Machines that run placed plans and check every access: `replay` the rules, `machine` with data."""
