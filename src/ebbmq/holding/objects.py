"""A device in an object store: messages packed many to an object, readable by Spark as they are.

Each store has an `Archive` of its own under its uuid, read in when its first key is met; nothing of
another store is ever read or deleted, only its size counts (sharing.py).
"""

from __future__ import annotations

import contextlib
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeVar

from ebbmq.errors import StorageFailed
from ebbmq.holding.archive import ROOT, Archive
from ebbmq.holding.columns import Batch, Keys
from ebbmq.holding.contract import Copy, DeviceFull, DeviceSpec, Key, Lack, Probe, Stored
from ebbmq.holding.sharing import Sharing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ebbmq.holding.bucket import Bucket
    from ebbmq.holding.sharing import Page

_PROBE: Final = f"{ROOT}/_probe"
#: A page of a listing is a request that is charged like a put; six a minute are 1.30 USD a month.
_PAGE_EVERY_MS: Final = 10_000
_T = TypeVar("_T")
_STORE_OF_KEY: Final[Callable[[Key], bytes]] = attrgetter("store")
_STORE_OF_COPY: Final[Callable[[Copy], bytes]] = attrgetter("key.store")


class ObjectDevice:
    """Copies in packs; `capacity_bytes` of its spec bounds what all stores have under its address.

    A put is one object for each queue in the batch and a delete is one small object, so batches
    should be large; small packs and those that are mostly dead are rewritten as they add up.
    """

    def __init__(self, spec: DeviceSpec, bucket: Bucket, clock: Callable[[], float]) -> None:
        """Describe the device; the first call reads the footers of its packs.

        Args:
            spec: what this device is.
            bucket: where the objects are.
            clock: seconds that never go back, for the latency of a probe and the age of a count.
        """
        assert not (spec.durable and bucket.is_volatile)
        self._spec = spec
        self._bucket = bucket
        self._clock = clock
        self._archives: dict[bytes, Archive] = {}
        self._sharing = Sharing(
            spec.capacity_bytes, self._own, self._others, clock, page_every_ms=_PAGE_EVERY_MS
        )
        self._closed = False

    @property
    def spec(self) -> DeviceSpec:
        """What this device is."""
        return self._spec

    def put_many(self, copies: Sequence[Copy]) -> None:
        """Keep the copies; they were read back and compared once this returns."""
        self._check()
        parts: Mapping[bytes, Sequence[Copy]]
        if isinstance(copies, Batch):
            parts, nbytes = {copies.store: copies}, copies.nbytes
        else:
            latest = list({copy.key: copy for copy in copies}.values())
            parts = _by_store(latest, _STORE_OF_COPY)
            nbytes = sum([len(copy.payload) for copy in latest])
        self._sharing.look_before(nbytes)
        self._admit(nbytes)
        encoded = []
        for store, part in parts.items():
            archive = self._archive(store)
            encoded.append((archive, archive.encoded(part)))
        self._admit(sum(len(data) for _, made in encoded for _, data, _ in made))
        for archive, made in encoded:
            archive.put(made)
            self._tidy(archive)

    def get_many(self, keys: Sequence[Key]) -> list[bytes | Lack]:
        """The bodies in the order of the keys, each checked against its checksum."""
        self._check()
        if isinstance(keys, Keys):
            return self._archive(keys.store).get(keys)
        found: dict[Key, bytes | Lack] = {}
        for store, part in _by_store(keys, _STORE_OF_KEY).items():
            found.update(zip(part, self._archive(store).get(part), strict=True))
        return [found[key] for key in keys]

    def delete_many(self, keys: Sequence[Key]) -> None:
        """Forget the copies; absent keys are fine."""
        self._check()
        of_stores: Mapping[bytes, Sequence[Key]] = (
            {keys.store: keys} if isinstance(keys, Keys) else _by_store(keys, _STORE_OF_KEY)
        )
        for store, part in of_stores.items():
            archive = self._archive(store)
            archive.delete(part)
            self._tidy(archive)

    def scan(self, store: bytes) -> Iterable[Stored]:
        """Every copy of that store as of the call."""
        self._check()
        return self._archive(store).stored()

    def probe(self) -> Probe:
        """Write a small object as durably as a put, and tell the space."""
        failure = "closed" if self._closed else None
        started = self._clock()
        used, took = 0, 0.0
        if failure is None:
            try:
                self._bucket.overwrite(_PROBE, b"probe")
                took = self._clock() - started
                self._sharing.go_on()
                used = self._sharing.used_bytes
            except (StorageFailed, DeviceFull) as error:
                failure = error.detail
        damage = "; ".join(filter(None, (a.damage for a in self._archives.values())))
        return Probe(
            ok=failure is None,
            used_bytes=used,
            capacity_bytes=self._spec.capacity_bytes,
            latency_ms=took * 1_000,
            detail=failure or damage,
        )

    def close(self) -> None:
        """Forget what was read; the packs stay."""
        self._closed = True
        self._archives.clear()

    def _archive(self, store: bytes) -> Archive:
        if store not in self._archives:
            self._archives[store] = Archive(self._bucket, store)
        return self._archives[store]

    def _own(self) -> dict[str, int]:
        return {_directory(store): found.used_bytes for store, found in self._archives.items()}

    def _others(self) -> Iterator[Page]:
        """What each store has that was not met so far, and what lies beside them."""
        level = self._bucket.level(f"{ROOT}/")
        yield [(found.path, found.size) for found in level.objects if found.path != _PROBE]
        for directory in level.directories:
            if directory not in map(_directory, self._archives):
                for page in self._bucket.pages(f"{directory}/"):
                    yield [(directory, sum([found.size for found in page]))]

    def _admit(self, nbytes: int) -> None:
        """Refuse what does not fit, also after rewriting what is worth it."""
        while self._sharing.used_bytes + nbytes > self._spec.capacity_bytes:
            if not any(archive.compact(pressed=True) for archive in self._archives.values()):
                raise DeviceFull(
                    f"device {self._spec.name!r} ({self._bucket.where}) holds "
                    f"{self._sharing.used_bytes} of {self._spec.capacity_bytes} bytes, "
                    f"{nbytes} more do not fit",
                    "choose another device, or raise its capacity_bytes",
                )

    def _tidy(self, archive: Archive) -> None:
        """Rewrite what is worth it; what was asked for is done, whether or not this works."""
        with contextlib.suppress(StorageFailed, DeviceFull):
            archive.compact()

    def _check(self) -> None:
        if self._closed:
            raise StorageFailed(f"device {self._spec.name!r} is closed", "open it again")


def _directory(store: bytes) -> str:
    return f"{ROOT}/store={store.hex()}"


def _by_store(values: Sequence[_T], store_of: Callable[[_T], bytes]) -> dict[bytes, list[_T]]:
    stores = set(map(store_of, values))
    if len(stores) == 1:
        return {stores.pop(): list(values)}
    parts: dict[bytes, list[_T]] = {}
    for value in values:
        parts.setdefault(store_of(value), []).append(value)
    return parts
