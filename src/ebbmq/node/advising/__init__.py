"""Advice of the pipeline: read from the lake, checked against the present, applied, on record."""
