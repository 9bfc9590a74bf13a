"""Every bound in one place. These are not knobs: a queue or a setting may only go below them."""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
DAY_MS: Final = 86_400_000

IMPORTANCE_MIN: Final = 1
IMPORTANCE_MAX: Final = 10

BODY_BYTES_MAX: Final = 64 * MIB
#: Encoded headers, producer's id, key and type of one message; 16 bits in its row.
HEADERS_BYTES_MAX: Final = 60 * KIB
#: With what is added when it goes to a dead queue: no message is too large for that.
MOVED_HEADERS_BYTES_MAX: Final = 64 * KIB - 1
NAME_CHARS_MAX: Final = 255
#: A node's name is in files of the lake, escaped, and in every entry of a latency history.
NODE_NAME_BYTES_MAX: Final = 64
BATCH_MESSAGES_MAX: Final = 100_000
LEASE_COUNT_MAX: Final = 100_000
#: Instants and durations are 48 bits in a row; ten thousand days are more than enough.
DURATION_MS_MAX: Final = 10_000 * DAY_MS
PARTITIONS_MAX: Final = 256
#: Deleted queues whose names are remembered, for who asks what became of their messages.
DELETED_QUEUES_MAX: Final = 128
#: Ranges of messages that may have been lost, as many as are remembered.
DAMAGE_MAX: Final = 128
REPLICAS_MAX: Final = 16
FAILURES_MAX: Final = 65_535
HISTORY_ENTRIES_MAX: Final = 8

PAGE_ROWS: Final = 4_096
ROW_BYTES: Final = 64
CLASSES_MAX: Final = 4_096

SEGMENT_BYTES: Final = 64 * MIB
#: A record never holds more rows than this, so that one bad sector costs at most these.
RECORD_ROWS_MAX: Final = 1_024
RECORD_BYTES_MAX: Final = 4 * MIB
#: Header and padding of a record, and more.
RECORD_OVERHEAD_BYTES: Final = 64
#: Preallocated journal space kept per live message when a message is accepted, so that it can be
#: leased and acked, alone in a record each, on a disk that is full by then ..
RESERVE_BYTES_PER_MESSAGE: Final = 144
#: .. and the part of it that leases and retries leave alone: an ack never fails for want of disk.
ACK_BYTES_PER_MESSAGE: Final = 56
#: Space kept for what the broker itself notes: the catalog, the clock, obituaries.
HOUSEKEEPING_BYTES: Final = 16 * KIB
UNSYNCED_FLUSH_MS: Final = 100
UNSYNCED_FLUSH_MESSAGES: Final = 1_000
#: What may wait in memory while a flush lasts; then whoever appends hands it to the kernel, which
#: takes less than a millisecond.
PENDING_BYTES_MAX: Final = MIB

#: Messages that can have been told their number and be lost in a power cut: what fits in
#: PENDING_BYTES_MAX, and more.
LOST_NUMBERS_MAX: Final = 1 << 20

CHECKPOINT_EVERY_FACTS: Final = 250_000
TICK_ROWS: Final = 2_048
#: A loop that goes on when its queue is empty waits at least so long for the next message.
CONSUME_WAIT_MS_MIN: Final = 100
CLOCK_AHEAD_MS_MAX: Final = 7 * DAY_MS
#: A calendar that was put right by so little did not jump; queue time goes on where it was.
CLOCK_BEHIND_MS_MAX: Final = 60_000

#: What others keep on a grid or in an object store is counted so often, a few pages of a listing
#: with each probe; where it has many pages, less often.
SHARED_COUNTED_EVERY_MS: Final = 60_000
SHARED_PAGES_AT_ONCE: Final = 8
#: Keys or objects on a page, as many as an object store gives with one request.
SHARED_PAGE_COUNT: Final = 1_000
#: A count is good for one of so many parts of the room that it found; then it is counted again.
SHARED_ROOM_PARTS: Final = 16

QUEUE_CACHE_BYTES: Final = 128 * MIB
NODE_CACHE_BYTES: Final = 2 * GIB
CACHE_ENTRY_OVERHEAD_BYTES: Final = 208
CACHE_HIGH_WATER: Final = 0.90
CACHE_LOW_WATER: Final = 0.80

DEDUP_WINDOW_MS: Final = 300_000
DEDUP_IDS_MAX: Final = 1_000_000
REMOVALS_BYTES_MAX: Final = 256 * MIB
DECISIONS_BYTES_MAX: Final = 64 * MIB

#: Rules added while a node runs, as the journal holds them, and the record of who changed them.
ADDED_RULES_BYTES_MAX: Final = 16 * MIB
RULE_CHANGES_MAX: Final = 1_000

#: Messages of a node that are held to plans, and runs whose outcome is remembered.
PINS_MAX: Final = 4 * MIB
RUNS_KEPT_MAX: Final = 256
#: Advice is at most so old when it is taken, at most so far from the future, and holds so long.
ADVICE_AGE_MS_MAX: Final = 3_600_000
ADVICE_AHEAD_MS_MAX: Final = 300_000
ADVICE_HOLDS_MS_MAX: Final = 7 * DAY_MS

#: Request line and headers of one HTTP request.
REQUEST_HEAD_BYTES_MAX: Final = 64 * KIB
REQUEST_HEADERS_MAX: Final = 100
#: Bodies in one answer, before base64; one message is always answered, however large.
ANSWER_BYTES_MAX: Final = 16 * MIB
