"""One module per question; each has `measure(run) -> list[Row]`."""
