"""The feed: what happens to messages, and which are there, written as Parquet into a lake."""
