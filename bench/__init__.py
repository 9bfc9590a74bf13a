"""Figures of the broker on this machine: one file per question."""
