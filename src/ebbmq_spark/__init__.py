"""EbbMQ's data pipeline on Spark: decisions for a whole fleet from what its nodes tell."""
