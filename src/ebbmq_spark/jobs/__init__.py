"""Jobs of the pipeline: read, transform, write; each can be killed anywhere and begun again."""
