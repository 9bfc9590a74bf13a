"""EbbMQ as a data source of Spark: `format("ebbmq")` to read, write and stream."""

from ebbmq_spark.connector.native import read_archive, read_lake
from ebbmq_spark.connector.source import EbbMQ, register

__all__ = ["EbbMQ", "read_archive", "read_lake", "register"]
