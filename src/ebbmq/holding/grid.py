"""A device in a data grid: Valkey or Redis (7.2 or newer), one server or a cluster.

Theory of operation. 256 messages that follow each other share a hash, `ebbmq:{store:pid:number}`,
with a field for each copy (its checksum, then its payload) and one that counts their bytes. So a
batch is a few commands instead of thousands, all keys of a command are in one slot of a cluster,
and what a store holds is known by reading one small field of each hash. Scripts change copies and
count together; there is nothing between the two. What stores of other brokers hold is counted anew
at intervals (sharing.py).

As a durable device it needs the append-only file with `appendfsync always`, and each call waits
(WAITAOF) until the disk of the primary, and those of as many replicas as were asked for, have it.
A failover loses what its replica did not have: with replicas, ask for at least one.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import crc32c
from valkey import exceptions as refusals

from ebbmq import limits
from ebbmq.errors import StorageFailed
from ebbmq.holding.contract import Copy, DeviceFull, DeviceSpec, Key, Lack, Probe, Stored
from ebbmq.holding.grid_nodes import Command, Nodes, Sync
from ebbmq.holding.sharing import Sharing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ebbmq.holding.sharing import Page

_CRC: Final = Struct("<I")
#: A field with its name, the value's header, and a share of its hash, beside the four of the crc.
_FIELD_BYTES: Final = 60
_BUCKET_BITS: Final = 8
_BUCKET_MASK: Final = (1 << _BUCKET_BITS) - 1
_BYTES: Final = "bytes"
_PROBE_KEY: Final = "ebbmq:probe"
#: A page of a count takes a server a millisecond: less than one in a hundred of its time, and not
#: more than probes come to that are a second apart.
_PAGE_EVERY_MS: Final = 250

# Each gives the change of the use; a put also the fields that were there before.
_PUT: Final = f"""#!lua
local answer = {{0}}
local change = 0
for i = 1, #ARGV, 2 do
  local size = redis.call('HSTRLEN', KEYS[1], ARGV[i])
  if size > 0 then
    change = change - size - {_FIELD_BYTES}
    answer[#answer + 1] = ARGV[i]
  end
  change = change + #ARGV[i + 1] + {_FIELD_BYTES}
end
redis.call('HSET', KEYS[1], unpack(ARGV))
redis.call('HINCRBY', KEYS[1], '{_BYTES}', change)
answer[1] = change
return answer
"""
_DELETE: Final = f"""#!lua flags=allow-oom
local change = 0
for i = 1, #ARGV do
  local size = redis.call('HSTRLEN', KEYS[1], ARGV[i])
  if size > 0 then
    change = change - size - {_FIELD_BYTES}
    redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
if change < 0 then
  if redis.call('HLEN', KEYS[1]) == 1 then
    redis.call('UNLINK', KEYS[1])
  else
    redis.call('HINCRBY', KEYS[1], '{_BYTES}', change)
  end
end
return change
"""
_LIST: Final = f"""#!lua flags=no-writes
local found = {{}}
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  if field ~= '{_BYTES}' then
    local value = redis.call('HGET', KEYS[1], field)
    found[#found + 1] = field
    found[#found + 1] = #value
    found[#found + 1] = string.sub(value, 1, 4)
  end
end
return found
"""


class GridDevice:
    """Copies in a data grid; `capacity_bytes` of its spec bounds what all stores have in it."""

    def __init__(
        self,
        spec: DeviceSpec,
        url: str,
        clock: Callable[[], float],
        *,
        replicas: int = 0,
        timeout_ms: int = 10_000,
    ) -> None:
        """Describe the device; the first call connects.

        Args:
            spec: what this device is.
            url: `valkey://host:port`, with `valkeys://` for TLS; for a cluster any of its nodes.
            clock: seconds that never go back, for the latency of a probe and the age of a count.
            replicas: how many replicas must have synced too, on a durable device.
            timeout_ms: how long to wait for servers and their disks in one call.

        Raises:
            InvalidSpec: the address cannot be read.
        """
        self._spec = spec
        self._clock = clock
        self._nodes = Nodes(url, timeout_ms=timeout_ms)
        self._sync = Sync(replicas, timeout_ms) if spec.durable else None
        self._closed = False
        #: What stores have that were written to since everything was counted.
        self._own: dict[str, int] = {}
        self._sharing = Sharing(
            spec.capacity_bytes,
            lambda: self._own,
            self._others,
            clock,
            page_every_ms=_PAGE_EVERY_MS,
        )
        self._runs = ""

    @property
    def spec(self) -> DeviceSpec:
        """What this device is."""
        return self._spec

    def put_many(self, copies: Sequence[Copy]) -> None:
        """Keep the copies; durable ones are on the asked-for disks once this returns."""
        self._open()
        latest = {copy.key: copy for copy in copies}
        if not latest:
            return
        self._admit(latest)
        buckets = _buckets(latest)
        commands = []
        for bucket, fields in buckets.items():
            words: list[Any] = ["EVAL", _PUT, 1, bucket]
            for field, key in fields.items():
                _, payload, crc, _ = latest[key]
                words += (field, _CRC.pack(crc) + payload)
            commands.append(Command(bucket, tuple(words)))
        answers = self._write(commands)
        refused = [answer for answer in answers if isinstance(answer, Exception)]
        if refused:
            self._take_back(buckets, answers)
            self._raise(refused[0])

    def get_many(self, keys: Sequence[Key]) -> list[bytes | Lack]:
        """The bodies in the order of the keys, each checked against its checksum."""
        self._open()
        buckets = _buckets(keys)
        commands = [
            Command(bucket, ("HMGET", bucket, *fields)) for bucket, fields in buckets.items()
        ]
        found: dict[Key, bytes | Lack] = {}
        for fields, values in zip(buckets.values(), self._run_all(commands), strict=True):
            for key, value in zip(fields.values(), values, strict=True):
                found[key] = _checked(value)
        return [found[key] for key in keys]

    def delete_many(self, keys: Sequence[Key]) -> None:
        """Forget the copies; absent keys are fine."""
        self._open()
        if not keys:
            return
        commands = [
            Command(bucket, ("EVAL", _DELETE, 1, bucket, *fields))
            for bucket, fields in _buckets(keys).items()
        ]
        for answer in self._write(commands):
            if isinstance(answer, Exception):
                self._raise(answer)

    def scan(self, store: bytes) -> Iterator[Stored]:
        """Every copy of that store as of the call; looks at the names of all keys there are."""
        self._open()
        found: dict[Key, Stored] = {}
        for buckets in self._bucket_names(f"ebbmq:{{{store.hex()}:*"):
            commands = [Command(name, ("EVAL", _LIST, 1, name)) for name in buckets]
            for name, lines in zip(buckets, self._run_all(commands), strict=True):
                _, pid, number = name.rstrip("}").rsplit(":", 2)
                for at in range(0, len(lines), 3):
                    seq = int(number) << _BUCKET_BITS | int(lines[at])
                    key = Key(store, int(pid), seq)
                    found[key] = Stored(key, lines[at + 1] - 4, _CRC.unpack(lines[at + 2])[0])
        return iter(found.values())

    def probe(self) -> Probe:
        """Write something small as durably as a put, ask every primary for its memory."""
        failure = "closed" if self._closed else None
        started = self._clock()
        used, capacity, started_as, took = 0, self._spec.capacity_bytes, "", 0.0
        if failure is None:
            try:
                self._open()
                write = Command(_PROBE_KEY, ("SET", _PROBE_KEY, "1"))
                self._run_all([write], self._sync)
                free, started_as = self._free_bytes(), self._started()
                took = self._clock() - started
                self._sharing.go_on()
                used = self._sharing.used_bytes
                capacity = min(capacity, used + free)
            except (StorageFailed, DeviceFull) as error:
                failure = error.detail
        return Probe(
            ok=failure is None,
            used_bytes=used,
            capacity_bytes=capacity,
            latency_ms=took * 1_000,
            detail=failure or "",
            started=started_as,
        )

    def close(self) -> None:
        """Let go of the connections; the copies stay."""
        self._closed = True
        self._nodes.close()

    def _open(self) -> None:
        """Connect if needed; what is there is counted anew then."""
        if self._closed:
            raise StorageFailed(f"device {self._spec.name!r} is closed", "open it again")
        if not self._nodes.is_open:
            self._nodes.open()
            if self._sync is not None:
                self._check_servers()
            self._forget()

    def _forget(self) -> None:
        """Have counted anew what is there, of our own stores too."""
        self._own.clear()
        self._sharing.forget()

    def _others(self) -> Iterator[Page]:
        """What the hashes have of stores that we keep no account of."""
        for buckets in self._bucket_names("ebbmq:{*"):
            names = [name for name in buckets if _store_of(name) not in self._own]
            commands = [Command(name, ("HGET", name, _BYTES)) for name in names]
            sizes = [int(answer or 0) for answer in self._run_all(commands)]
            yield zip(map(_store_of, names), sizes, strict=True)

    def _write(self, commands: Sequence[Command]) -> list[Any]:
        """Put or delete, and keep account of it: nobody else writes to a store of ours."""
        try:
            answers = self._nodes.run(commands, self._sync)
        except StorageFailed:
            # Some of it may be done.
            self._forget()
            raise
        for command, answer in zip(commands, answers, strict=True):
            if self._sharing.is_counted and not isinstance(answer, Exception):
                store = _store_of(command.key)
                self._own.setdefault(store, self._sharing.counted(store))
                self._own[store] += answer[0] if isinstance(answer, list) else answer
        return answers

    def _check_servers(self) -> None:
        """Refuse servers that would lose, or throw away, what they confirmed."""
        wanted = ("INFO", "memory"), ("INFO", "persistence"), ("CONFIG", "GET", "appendfsync")
        for memory, persistence, appendfsync in self._nodes.on_each(*wanted):
            found = {**_info(memory), **_info(persistence)}
            problem = None
            if found.get("aof_enabled") != "1":
                problem = "appendonly is no: set it to yes, and appendfsync to always"
            # Where CONFIG is not allowed, waiting for the disk is as safe, if maybe slow.
            elif isinstance(appendfsync, list) and appendfsync[1:] != [b"always"]:
                problem = f"appendfsync is {appendfsync[1].decode()}: set it to always"
            elif found.get("maxmemory_policy", "").startswith("allkeys"):
                problem = "maxmemory-policy evicts any key: set it to noeviction"
            if problem is not None:
                self._nodes.close()
                raise StorageFailed(
                    f"device {self._spec.name!r} ({self._nodes.where}) is to be durable, but "
                    f"{problem.partition(': ')[0]}",
                    f"on each server: {problem.partition(': ')[2]}; or declare it not durable",
                )

    def _admit(self, latest: dict[Key, Copy]) -> None:
        growth = sum(len(copy.payload) + 4 + _FIELD_BYTES for copy in latest.values())
        self._sharing.look_before(growth)
        if self._sharing.used_bytes + growth <= self._spec.capacity_bytes:
            return
        commands = [
            Command(bucket, ("HSTRLEN", bucket, field))
            for bucket, fields in _buckets(latest).items()
            for field in fields
        ]
        growth -= sum(size + _FIELD_BYTES for size in self._run_all(commands) if size)
        self._sharing.look_before(growth)
        used = self._sharing.used_bytes
        if used + growth > self._spec.capacity_bytes:
            raise DeviceFull(
                f"device {self._spec.name!r} ({self._nodes.where}) holds {used} of "
                f"{self._spec.capacity_bytes} bytes, {growth} more do not fit",
                "choose another device, or raise its capacity_bytes",
            )

    def _take_back(self, buckets: dict[str, dict[str, Key]], answers: Sequence[Any]) -> None:
        """Delete what a batch added before a server had no room for the rest of it."""
        added = []
        for fields, answer in zip(buckets.values(), answers, strict=True):
            if isinstance(answer, list):
                before = {field.decode() for field in answer[1:]}
                added += [key for field, key in fields.items() if field not in before]
        self.delete_many(added)

    def _bucket_names(self, pattern: str) -> Iterator[list[str]]:
        for client in self._nodes.primaries():
            cursor: int | None = None
            while cursor != 0:
                try:
                    cursor, names = client.scan(
                        cursor or 0, match=pattern, count=limits.SHARED_PAGE_COUNT
                    )
                except (refusals.ValkeyError, OSError) as error:
                    self._nodes.close()
                    raise self._nodes.failed("listing keys", error) from error
                yield [name.decode() for name in names]

    def _free_bytes(self) -> int:
        """What the servers say is left of their own bound; without one, as much as anybody asks."""
        free = 0
        for (memory,) in self._nodes.on_each(("INFO", "memory")):
            found = _info(memory)
            limit = int(found.get("maxmemory", 0))
            if not limit:
                return self._spec.capacity_bytes
            free += max(0, limit - int(found.get("used_memory", 0)))
        return free

    def _started(self) -> str:
        """The runs of all primaries; one that started anew may have less than it confirmed.

        A server that keeps what it has on its disk has it again, and then only that is found out.
        """
        runs = [
            _info(server).get("run_id", "") for (server,) in self._nodes.on_each(("INFO", "server"))
        ]
        started = " ".join(sorted(runs))
        if started != self._runs:
            if self._runs:
                self._forget()
            self._runs = started
        return started

    def _run_all(self, commands: Sequence[Command], sync: Sync | None = None) -> list[Any]:
        answers = self._nodes.run(commands, sync)
        for answer in answers:
            if isinstance(answer, Exception):
                self._raise(answer)
        return answers

    def _raise(self, refusal: Exception) -> None:
        if isinstance(refusal, refusals.OutOfMemoryError) or str(refusal).startswith("OOM"):
            raise DeviceFull(
                f"device {self._spec.name!r} ({self._nodes.where}): a server reached its maxmemory",
                "choose another device, or raise maxmemory of the servers",
            ) from refusal
        raise self._nodes.failed("asking", refusal) from refusal


def _buckets(keys: Iterable[Key]) -> dict[str, dict[str, Key]]:
    """Keys by the hash they are in, and in it by field."""
    buckets: dict[str, dict[str, Key]] = {}
    for key in keys:
        store, pid, seq = key
        name = f"ebbmq:{{{store.hex()}:{pid}:{seq >> _BUCKET_BITS}}}"
        buckets.setdefault(name, {})[str(seq & _BUCKET_MASK)] = key
    return buckets


def _store_of(bucket: str) -> str:
    """The store whose copies are in a hash."""
    return bucket.removeprefix("ebbmq:{").partition(":")[0]


def _checked(value: bytes | None) -> bytes | Lack:
    if value is None:
        return Lack.MISSING
    payload = value[_CRC.size :]
    if len(value) < _CRC.size or crc32c.crc32c(payload) != _CRC.unpack_from(value)[0]:
        return Lack.DAMAGED
    return payload


def _info(answer: Any) -> dict[str, str]:
    """The fields of an INFO section; nothing where INFO is refused."""
    if not isinstance(answer, bytes):
        return {}
    lines = answer.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)
