"""The figures: what the broker costs, measured, each beside the bar it must reach."""
