"""Upkeep of an archive in an object store: the same as of one in a directory."""

from __future__ import annotations

import obstore
from obstore.store import S3Store

from ebbmq import Broker
from ebbmq_spark.upkeep.job import Asked, upkeep
from ebbmq_spark.upkeep.packs import Place
from tests.pipeline.patience import patiently
from tests.pipeline.test_upkeep_broker import CONFIG, archived, body, delivered, rest, thinned


def device_in(weed, name):
    """The settings of a device in the S3 service."""
    options = {
        "endpoint": weed.endpoint, "region": "us-east-1",
        "access_key_id": weed.access_key, "secret_access_key": weed.secret_key,
    }  # fmt: skip
    device = {**CONFIG["devices"]["cold"], "options": options}
    del device["directory"]
    return {**device, "url": f"s3://{weed.bucket}/cold-{name}"}


def objects(cold, name):
    """Those of the device by the beginning of their names."""
    bucket, _, prefix = cold["url"].removeprefix("s3://").partition("/")
    store = S3Store(bucket, prefix=prefix, client_options={"allow_http": True}, **cold["options"])
    found = [each["path"] for page in obstore.list(store) for each in page]
    return store, sorted(path for path in found if path.rsplit("/", 1)[-1].startswith(name))


def test_packs_in_a_store_are_written_anew_taken_and_delivered_from(spark, tmp_path, weed):
    cold = device_in(weed, tmp_path.name)
    place = Place(cold["url"], cold["options"])
    with archived(Broker.open(tmp_path / "data", {**CONFIG, "devices": {"cold": cold}})) as broker:
        thinned(broker, 10)
        before = objects(cold, "pack-")[1]
        told = patiently(lambda: upkeep(spark, place, Asked(verify=True)))
        assert (told.rewritten, told.made_messages, told.damage) == (1, 10, [])
        # Nobody sees the new pack before the broker took it, and nobody the old one after that.
        assert objects(cold, "pack-")[1] == before
        again = patiently(lambda: upkeep(spark, place, Asked()))
        assert len(again.waiting) == 1
        applied = broker.tend_device("cold")
        assert (applied.run, applied.packs, applied.messages) == (told.run, 1, 10)
        assert not set(objects(cold, "pack-")[1]) & set(before)
        assert objects(cold, "mapping")[1] == []
        store, (pack,) = objects(cold, "pack-")
        whole = bytes(obstore.get(store, pack).bytes())
        damaged = bytearray(whole)
        damaged[damaged.index(body(57)) + 5] ^= 1
        obstore.put(store, pack, bytes(damaged))
        looked = patiently(lambda: upkeep(spark, place, Asked(verify=True, compact=False)))
        assert [each.pack for each in looked.damage] == [pack]
        obstore.put(store, pack, whole)
        assert delivered(broker, 10) == rest(10)
