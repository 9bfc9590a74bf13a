"""From one queue to another through Spark: what is worth hurrying for goes on, with a price.

    ebbmq serve --data data                                  # in another terminal
    python examples/spark_queue_to_queue/run.py http://127.0.0.1:8080 example.checkpoint

Messages of `example.orders` are leased, read by Spark, priced, and published to `example.priced`;
each is acked once Spark has committed the batch it was in. Run it again: there are new orders, and
it goes on from its checkpoint, a directory. To begin anew remove that, and what the broker keeps:

    ebbmq queues delete spark.sink.example.priced --url http://127.0.0.1:8080
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # as everywhere in Spark

from ebbmq import Client, Message, QueueSpec
from ebbmq_spark.connector import register
from ebbmq_spark.session import Settings, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def prepare(client: Client) -> None:
    """Two queues, and some orders to work on."""
    client.declare(QueueSpec("example.orders", decay_rate=0.5, partitions=2))
    client.declare(QueueSpec("example.priced"))
    client.publish(
        "example.orders",
        [
            Message(
                b'{"order": %d, "pieces": %d}' % (number, 1 + number % 7),
                importance=1 + number % 10,
                headers={"region": "eu" if number % 2 else "us"},
            )
            for number in range(1_000)
        ],
    )


def priced(orders: DataFrame) -> DataFrame:
    """What is published: an id that no other message has, played again or not, and the body."""
    order = F.from_json(F.col("body").cast("string"), "order INT, pieces INT")
    price = F.when(F.col("headers")["region"] == "eu", 1.19).otherwise(1.07) * order["pieces"]
    return orders.select(
        F.col("unique_id"),
        F.to_json(F.struct(order["order"].alias("order"), price.alias("price"))).alias("body"),
        F.col("importance"),
        F.col("headers"),
    )


def run(spark: SparkSession, url: str, checkpoint: str, **options: str) -> None:
    """Work on everything that is there, and end."""
    orders = (
        spark.readStream.format("ebbmq")
        .options(
            url=url, queue="example.orders", columns="unique_id,body,headers,importance", **options
        )
        .load()
    )
    query = (
        priced(orders)
        .writeStream.format("ebbmq")
        .options(url=url, queue="example.priced", **options)
        .options(idColumn="unique_id", sinkId="example.priced")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main(url: str = "http://127.0.0.1:8080", checkpoint: str = "example.checkpoint") -> None:
    """The whole of it, on this machine."""
    with Client(url) as client, spark_session(Settings(shuffle_partitions=2)) as spark:
        register(spark)
        prepare(client)
        run(spark, url, checkpoint)
        done = client.stats("example.priced")["depth"]["ready"]
        left = client.stats("example.orders")["depth"]
        sys.stdout.write(f"{done} orders have a price; left: {left}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
