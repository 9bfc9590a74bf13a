"""Where bodies are kept beside the node's log: placing, moving, reading, reviewing, repairing."""
