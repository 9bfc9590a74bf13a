/*
 * Columns as pages of Parquet: see node/feeding/parquet.py.
 *
 * Most columns of a feed say the same for thousands of events. So every encoding here looks for runs
 * first, and what repeats costs about as much as reading it once. The GIL is let go while pages are
 * made: what is read nobody changes meanwhile.
 *
 * Encodings are those of the format's Encodings.md: RLE_DICTIONARY (indices as runs or packed bits),
 * DELTA_BINARY_PACKED in blocks of 128 numbers and miniblocks of 32, DELTA_BYTE_ARRAY, PLAIN.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "_parquet.h"

/* How a column is to be encoded: parquet.py. */
enum { SMALL, WIDE, REAL, NEAR, CODES, IDS, HOWS };
/* Numbers of the format. */
enum { PLAIN = 0, DELTA_BINARY_PACKED = 5, DELTA_BYTE_ARRAY = 7, RLE_DICTIONARY = 8 };
enum { BLOCK = 128, MINIBLOCKS = 4, MINIBLOCK = BLOCK / MINIBLOCKS, BLOCK_BYTES_MAX = 16 + BLOCK * 8 };
/* Numbers in the dictionary of a column; above, it does not pay. */
enum { DICTIONARY_MAX = 4096, SLOTS = 4 * DICTIONARY_MAX, DICTIONARY_MIN = 16 };
enum { SPARE = 64, VARINT_MAX = 10, GROUP = 8, ID_BYTES = 8 + 1 + 16 };
#define NO_SLOT UINT32_MAX

/* Bytes that grow. */
typedef struct {
    uint8_t *data;
    size_t used, size;
} Bytes;

/* Where so many bytes more may go; NULL if there is no memory for them. */
static uint8_t *
room_for(Bytes *bytes, size_t more)
{
    if (bytes->data == NULL || more > bytes->size - bytes->used) {
        size_t size = 2 * bytes->size + more + SPARE;
        uint8_t *data = realloc(bytes->data, size);
        if (data == NULL) {
            return NULL;
        }
        bytes->data = data;
        bytes->size = size;
    }
    return bytes->data + bytes->used;
}

/* They go up to there. */
static void
end_at(Bytes *bytes, const uint8_t *end)
{
    bytes->used = (size_t)(end - bytes->data);
}

static int
add(Bytes *bytes, const void *data, size_t size)
{
    uint8_t *to = room_for(bytes, size);
    if (to == NULL) {
        return 0;
    }
    memcpy(to, data, size);
    bytes->used += size;
    return 1;
}

static uint8_t *
put_varint(uint8_t *to, uint64_t value)
{
    for (; value >= 0x80; value >>= 7) {
        *to++ = (uint8_t)(value | 0x80);
    }
    *to++ = (uint8_t)value;
    return to;
}

static uint64_t
zigzag(int64_t value)
{
    return ((uint64_t)value << 1) ^ (value < 0 ? UINT64_MAX : 0);
}

static int
bits_of(uint64_t value)
{
    return value ? 64 - __builtin_clzll(value) : 0;
}

/* Numbers of so many bits, the lowest first; `to` has room for 8 bytes more than they take. */
static uint8_t *
put_bits(uint8_t *to, const uint64_t *values, int count, int width)
{
    unsigned __int128 waiting = 0;
    int bits = 0;
    for (int at = 0; at < count; at++) {
        waiting |= (unsigned __int128)values[at] << bits;
        bits += width;
        if (bits >= 64) {
            uint64_t word = (uint64_t)waiting;
            memcpy(to, &word, 8);
            to += 8;
            waiting >>= 64;
            bits -= 64;
        }
    }
    for (; bits > 0; bits -= 8, waiting >>= 8) {
        *to++ = (uint8_t)waiting;
    }
    return to;
}

/* The same of a miniblock of numbers of few bits. */
static uint8_t *
put_few_bits(uint8_t *to, const uint64_t *values, int width)
{
    /* Eight of them at a time take `width` bytes. */
    for (int at = 0; at < MINIBLOCK; at += 8, to += width) {
        uint64_t word = 0;
        for (int each = 0; each < 8; each++) {
            word |= values[at + each] << each * width;
        }
        memcpy(to, &word, 8);
    }
    return to;
}

/* --- runs and packed bits --- */

/* How many indices from the first on are the same. */
static size_t
run_of(const uint32_t *index, size_t count)
{
    size_t at = 1;
    while (at < count && index[at] == index[0]) {
        at++;
    }
    return at;
}

/* Indices that change, eight by eight, until some repeat. */
static size_t
changing(const uint32_t *index, size_t count)
{
    size_t at = 0;
    while (at < count) {
        size_t left = count - at, same = run_of(index + at, left < 2 * GROUP ? left : 2 * GROUP);
        if (same >= 2 * GROUP) {
            break;
        }
        at += GROUP;
    }
    return at < count ? at : count;
}

static int
add_packed(Bytes *out, const uint32_t *index, size_t count, int width)
{
    size_t groups = (count + GROUP - 1) / GROUP;
    uint8_t *to = room_for(out, VARINT_MAX + groups * (size_t)width + 8);
    if (to == NULL) {
        return 0;
    }
    to = put_varint(to, groups << 1 | 1);
    for (size_t at = 0; at < count; at += GROUP) {
        uint64_t values[GROUP] = {0};
        for (size_t each = 0; each < GROUP && at + each < count; each++) {
            values[each] = index[at + each];
        }
        to = put_bits(to, values, GROUP, width);
    }
    end_at(out, to);
    return 1;
}

static int
add_run(Bytes *out, size_t count, uint32_t value, int width)
{
    uint8_t *to = room_for(out, VARINT_MAX + 4);
    if (to == NULL) {
        return 0;
    }
    to = put_varint(to, (uint64_t)count << 1);
    for (int bits = 0; bits < width; bits += 8) {
        *to++ = (uint8_t)(value >> bits);
    }
    end_at(out, to);
    return 1;
}

/* The hybrid of runs and packed bits. */
static int
add_indices(Bytes *out, const uint32_t *index, size_t count, int width)
{
    for (size_t at = 0; at < count;) {
        size_t same = run_of(index + at, count - at);
        int is_done;
        if (same >= GROUP || same == count - at) {
            is_done = add_run(out, same, index[at], width);
        }
        else {
            same = changing(index + at, count - at);
            is_done = add_packed(out, index + at, same, width);
        }
        if (!is_done) {
            return 0;
        }
        at += same;
    }
    return 1;
}

/* --- which values there are --- */

/* Which of the rows have a value, as levels: their length, then bits as runs or as they are. */
static int
add_levels(Bytes *out, const uint8_t *present, size_t rows)
{
    size_t start = out->used, whole = rows / 8, at = 0;
    if (!add(out, "\0\0\0\0", 4)) {
        return 0;
    }
    while (at < whole) {
        size_t end = at + 1;
        int is_done, is_run = present[at] == 0 || present[at] == 0xFF;
        if (is_run) {
            while (end < whole && present[end] == present[at]) {
                end++;
            }
            is_done = add_run(out, (end - at) * 8, present[at] & 1, 1);
        }
        else {
            while (end < whole && present[end] != 0 && present[end] != 0xFF) {
                end++;
            }
            uint8_t *to = room_for(out, VARINT_MAX);
            is_done = to != NULL;
            if (is_done) {
                end_at(out, put_varint(to, (end - at) << 1 | 1));
                is_done = add(out, present + at, end - at);
            }
        }
        if (!is_done) {
            return 0;
        }
        at = end;
    }
    if (rows % 8) {
        uint8_t last[2] = {1 << 1 | 1, (uint8_t)(present[whole] & ((1 << rows % 8) - 1))};
        if (!add(out, last, 2)) {
            return 0;
        }
    }
    uint32_t length = (uint32_t)(out->used - start - 4);
    memcpy(out->data + start, &length, 4);
    return 1;
}

/* The values that are there, one after the other; returns how many. */
static size_t
gather(uint8_t *to, const uint8_t *values, size_t width, const uint8_t *present, size_t rows)
{
    const uint8_t *start = to;
    for (size_t at = 0; at < rows; at++) {
        if (present[at >> 3] >> (at & 7) & 1) {
            memcpy(to, values + at * width, width);
            to += width;
        }
    }
    return (size_t)(to - start) / width;
}

/* --- dictionaries --- */

/* The distinct values of a column in the order they come, and which of them each value is. */
typedef struct {
    uint64_t values[DICTIONARY_MAX];
    uint32_t slots[SLOTS];
    uint32_t count, limit;
} Dictionary;

static uint64_t
load(const uint8_t *values, size_t at, size_t width)
{
    if (width == 4) {
        uint32_t small;
        memcpy(&small, values + at * 4, 4);
        return small;
    }
    uint64_t wide;
    memcpy(&wide, values + at * 8, 8);
    return wide;
}

/* The index of a value, which becomes one if it is none; NO_SLOT where there is no room for it. */
static uint32_t
index_of(Dictionary *known, uint64_t value)
{
    uint32_t slot = (uint32_t)((value * UINT64_C(0x9E3779B97F4A7C15)) >> 50);
    for (;; slot = (slot + 1) % SLOTS) {
        uint32_t found = known->slots[slot];
        if (found == NO_SLOT) {
            break;
        }
        if (known->values[found] == value) {
            return found;
        }
    }
    if (known->count >= known->limit) {
        return NO_SLOT;
    }
    known->slots[slot] = known->count;
    known->values[known->count] = value;
    return known->count++;
}

/* Fill in the index of every value; 0 where they are too many for a dictionary. */
static int
indices_of(Dictionary *known, const uint8_t *values, size_t count, size_t width, uint32_t *index)
{
    memset(known->slots, 0xFF, sizeof known->slots);
    known->count = 0;
    known->limit = (uint32_t)(count / 4 > DICTIONARY_MAX ? DICTIONARY_MAX : count / 4);
    known->limit = known->limit < DICTIONARY_MIN ? DICTIONARY_MIN : known->limit;
    uint64_t last = 0;
    uint32_t found = NO_SLOT;
    for (size_t at = 0; at < count; at++) {
        uint64_t value = load(values, at, width);
        if (value != last || found == NO_SLOT) {
            found = index_of(known, value);
            if (found == NO_SLOT) {
                return 0;
            }
            last = value;
        }
        index[at] = found;
    }
    return 1;
}

/* Whether all values are the same. */
static int
is_one_value(const uint8_t *values, size_t count, size_t width)
{
    return count && memcmp(values, values + width, (count - 1) * width) == 0;
}

/* --- encodings --- */

/* What is made of a column. */
typedef struct {
    Bytes dictionary, page;
    size_t count;
    int encoding;
} Encoded;

/* Room that columns share, one after the other. */
typedef struct {
    Dictionary known;
    uint8_t *gathered;
    uint32_t *index;
} Room;

static int
add_dictionary_page(Encoded *out, const uint32_t *index, size_t count, uint32_t distinct)
{
    int width = bits_of(distinct ? distinct - 1 : 0);
    width = width ? width : 1;
    uint8_t first = (uint8_t)width;
    out->encoding = RLE_DICTIONARY;
    return add(&out->page, &first, 1) && add_indices(&out->page, index, count, width);
}

static int
add_one_value(Encoded *out, const uint8_t *values, size_t count, size_t width)
{
    out->encoding = RLE_DICTIONARY;
    return add(&out->dictionary, values, width) && add(&out->page, "\1", 1)
        && add_run(&out->page, count, 0, 1);
}

static uint8_t *
put_block(uint8_t *to, const uint64_t *deltas, size_t count)
{
    int64_t least = (int64_t)deltas[0];
    for (size_t at = 1; at < count; at++) {
        least = (int64_t)deltas[at] < least ? (int64_t)deltas[at] : least;
    }
    to = put_varint(to, zigzag(least));
    uint8_t *widths = to;
    memset(widths, 0, MINIBLOCKS);
    to += MINIBLOCKS;
    for (size_t from = 0; from < count; from += MINIBLOCK) {
        uint64_t above[MINIBLOCK] = {0}, all = 0;
        for (size_t at = 0; at < MINIBLOCK && from + at < count; at++) {
            above[at] = deltas[from + at] - (uint64_t)least;
            all |= above[at];
        }
        widths[from / MINIBLOCK] = (uint8_t)bits_of(all);
        if (all >> 8) {
            to = put_bits(to, above, MINIBLOCK, bits_of(all));
        }
        else if (all) {
            to = put_few_bits(to, above, bits_of(all));
        }
    }
    return to;
}

/* One in which all numbers are as far from the one before. */
static uint8_t *
put_even_block(uint8_t *to, uint64_t delta)
{
    to = put_varint(to, zigzag((int64_t)delta));
    memset(to, 0, MINIBLOCKS);
    return to + MINIBLOCKS;
}

/* DELTA_BINARY_PACKED begins with how many numbers there are, and the first. */
static int
begin_deltas(Bytes *out, size_t count, int64_t first)
{
    uint8_t *to = room_for(out, 4 * VARINT_MAX);
    if (to == NULL) {
        return 0;
    }
    to = put_varint(put_varint(put_varint(to, BLOCK), MINIBLOCKS), count);
    end_at(out, put_varint(to, zigzag(first)));
    return 1;
}

/* Some numbers more, a block or the last of them, after one. */
static int
add_block(Bytes *out, const int64_t *values, size_t count, int64_t before)
{
    uint64_t deltas[BLOCK], differ = 0, first = (uint64_t)values[0] - (uint64_t)before;
    deltas[0] = first;
    for (size_t at = 1; at < count; at++) {
        deltas[at] = (uint64_t)values[at] - (uint64_t)values[at - 1];
        differ |= deltas[at] ^ first;
    }
    uint8_t *to = room_for(out, BLOCK_BYTES_MAX);
    if (to == NULL) {
        return 0;
    }
    end_at(out, differ ? put_block(to, deltas, count) : put_even_block(to, first));
    return 1;
}

static int
add_deltas(Bytes *out, const int64_t *values, size_t count)
{
    int is_done = begin_deltas(out, count, count ? values[0] : 0);
    for (size_t at = 1; is_done && at < count; at += BLOCK) {
        is_done = add_block(out, values + at, count - at < BLOCK ? count - at : BLOCK, values[at - 1]);
    }
    return is_done;
}

/* Numbers by a dictionary, or otherwise where that does not pay. */
static int
add_numbers(Encoded *out, const uint8_t *values, size_t count, size_t width, int how, Room *room)
{
    if (how == NEAR) {
        out->encoding = DELTA_BINARY_PACKED;
        return add_deltas(&out->page, (const int64_t *)values, count);
    }
    if (is_one_value(values, count, width)) {
        return add_one_value(out, values, count, width);
    }
    Dictionary *known = &room->known;
    if (indices_of(known, values, count, width, room->index)) {
        int is_done = 1;
        for (uint32_t at = 0; is_done && at < known->count; at++) {
            is_done = add(&out->dictionary, &known->values[at], width);
        }
        return is_done && add_dictionary_page(out, room->index, count, known->count);
    }
    if (how == WIDE) {
        out->encoding = DELTA_BINARY_PACKED;
        return add_deltas(&out->page, (const int64_t *)values, count);
    }
    out->encoding = PLAIN;
    return add(&out->page, values, count * width);
}

/* Codes by a dictionary of those that there are. */
static int
add_codes(Encoded *out, const uint8_t *values, size_t count, Room *room)
{
    if (is_one_value(values, count, 4)) {
        return add_one_value(out, values, count, 4);
    }
    const uint32_t *code = (const uint32_t *)values;
    uint32_t most = 0, distinct = 0;
    for (size_t at = 0; at < count; at++) {
        most = code[at] > most ? code[at] : most;
    }
    uint32_t *index = malloc(((size_t)most + 1) * 4);
    if (index == NULL) {
        return 0;
    }
    memset(index, 0xFF, ((size_t)most + 1) * 4);
    int is_done = 1;
    for (size_t at = 0; is_done && at < count; at++) {
        if (index[code[at]] == NO_SLOT) {
            index[code[at]] = distinct++;
            is_done = add(&out->dictionary, &code[at], 4);
        }
        room->index[at] = index[code[at]];
    }
    free(index);
    return is_done && add_dictionary_page(out, room->index, count, distinct);
}

/* An id as people see it, nothing for partition 0; returns how many characters it has. */
static int
spell_id(char *to, uint64_t partition, uint64_t seq)
{
    static const char digits[] = "0123456789abcdef";
    char *at = to;
    if (!(uint32_t)partition) {
        return 0;
    }
    for (int digit = (bits_of((uint32_t)partition) + 3) / 4; digit--;) {
        *at++ = digits[partition >> 4 * digit & 15];
    }
    *at++ = '-';
    for (int digit = seq ? (bits_of(seq) + 3) / 4 : 1; digit--;) {
        *at++ = digits[seq >> 4 * digit & 15];
    }
    return (int)(at - to);
}

/* How many ids from a place on differ from the one before them only by their last digit. */
static size_t
counted_on(const uint64_t *partitions, const uint64_t *seqs, size_t at, size_t count)
{
    const size_t before = at - 1;
    size_t end = at, most = at + (-seqs[at] & 15);
    if (!(uint32_t)partitions[before]) {
        return 0;
    }
    most = most < count ? most : count;
    while (end < most && partitions[end] == partitions[before]
           && seqs[end] - seqs[before] == end - before) {
        end++;
    }
    return end - at;
}

/* Numbers on their way into blocks, all but the first. */
typedef struct {
    Bytes page;
    int64_t waiting[BLOCK], before;
    size_t count;
} Stream;

static int
flush(Stream *to)
{
    int is_done = !to->count || add_block(&to->page, to->waiting, to->count, to->before);
    to->before = to->count ? to->waiting[to->count - 1] : to->before;
    to->count = 0;
    return is_done;
}

static int
stream(Stream *to, int64_t value)
{
    to->waiting[to->count++] = value;
    return to->count < BLOCK || flush(to);
}

/* Ids as they are spelled, each by what it shares with the one before it and the rest. */
typedef struct {
    Stream shared, rest;
    Bytes text;
    char spelled[2][ID_BYTES];
    int which, length;
} Ids;

/* The next id; returns how many characters it shares. */
static int
spell_next(Ids *ids, uint64_t partition, uint64_t seq)
{
    char *before = ids->spelled[ids->which], *now = ids->spelled[ids->which ^= 1];
    int had = ids->length, same = 0;
    ids->length = spell_id(now, partition, seq);
    while (same < had && same < ids->length && now[same] == before[same]) {
        same++;
    }
    return same;
}

static int
add_id(Ids *ids, uint64_t partition, uint64_t seq)
{
    int same = spell_next(ids, partition, seq), rest = ids->length - same;
    return stream(&ids->shared, same) && stream(&ids->rest, rest)
        && add(&ids->text, ids->spelled[ids->which] + same, (size_t)rest);
}

/* So many, of which only the last digit is another. */
static int
add_counted(Ids *ids, uint64_t seq, size_t count)
{
    char *last = &ids->spelled[ids->which][ids->length - 1];
    uint8_t *to = room_for(&ids->text, count);
    int is_done = to != NULL;
    for (; is_done && count--; seq++) {
        *to++ = (uint8_t)(*last = "0123456789abcdef"[seq & 15]);
        is_done = stream(&ids->shared, ids->length - 1) && stream(&ids->rest, 1);
    }
    if (is_done) {
        end_at(&ids->text, to);
    }
    return is_done;
}

/* DELTA_BYTE_ARRAY of ids; there is one at least. */
static int
add_ids(Encoded *out, const uint64_t *partitions, const uint64_t *seqs, size_t count)
{
    Ids ids = {.which = 0};
    spell_next(&ids, partitions[0], seqs[0]);
    int is_done = begin_deltas(&ids.shared.page, count, 0)
        && begin_deltas(&ids.rest.page, count, ids.length)
        && add(&ids.text, ids.spelled[ids.which], (size_t)ids.length);
    ids.rest.before = ids.length;
    for (size_t at = 1; is_done && at < count;) {
        size_t counted = counted_on(partitions, seqs, at, count);
        is_done = counted ? add_counted(&ids, seqs[at], counted)
                          : add_id(&ids, partitions[at], seqs[at]);
        at += counted ? counted : 1;
    }
    out->encoding = DELTA_BYTE_ARRAY;
    is_done = is_done && flush(&ids.shared) && flush(&ids.rest)
        && add(&out->page, ids.shared.page.data, ids.shared.page.used)
        && add(&out->page, ids.rest.page.data, ids.rest.page.used)
        && add(&out->page, ids.text.data, ids.text.used);
    free(ids.shared.page.data);
    free(ids.rest.page.data);
    free(ids.text.data);
    return is_done;
}

/* --- columns --- */

typedef struct {
    int how;
    Py_buffer values, second;
    size_t rows;
} Column;

static const uint8_t widths[HOWS] = {4, 8, 8, 8, 4, 8};

static int
encode_column(Encoded *out, const Column *column, Room *room)
{
    const uint8_t *values = column->values.buf;
    size_t width = widths[column->how];
    out->count = column->rows;
    if (column->how == IDS) {
        return add_ids(out, column->values.buf, column->second.buf, column->rows);
    }
    if (column->second.buf != NULL) {
        if (!add_levels(&out->page, column->second.buf, column->rows)) {
            return 0;
        }
        out->count = gather(room->gathered, values, width, column->second.buf, column->rows);
        values = room->gathered;
    }
    if (!out->count) {
        out->encoding = PLAIN;
        return 1;
    }
    return column->how == CODES ? add_codes(out, values, out->count, room)
                                : add_numbers(out, values, out->count, width, column->how, room);
}

static int
read_column(Column *to, PyObject *from)
{
    PyObject *values, *second;
    if (!PyTuple_Check(from)) {
        PyErr_SetString(PyExc_TypeError, "a column is how, its values, and which of them count");
        return 0;
    }
    if (!PyArg_ParseTuple(from, "iOO", &to->how, &values, &second)) {
        return 0;
    }
    if (to->how < 0 || to->how >= HOWS) {
        PyErr_SetString(PyExc_ValueError, "there is no such way to encode a column");
        return 0;
    }
    if (PyObject_GetBuffer(values, &to->values, PyBUF_ND) < 0
        || (second != Py_None && PyObject_GetBuffer(second, &to->second, PyBUF_ND) < 0)) {
        return 0;
    }
    to->rows = (size_t)to->values.len / widths[to->how];
    size_t wanted = to->how == IDS ? to->rows * 8 : (to->rows + 7) / 8;
    if (to->values.itemsize != widths[to->how] || !to->rows || to->rows > INT32_MAX
        || (second == Py_None ? to->how == IDS : (size_t)to->second.len != wanted)) {
        PyErr_SetString(PyExc_ValueError, "a column has another size than its values");
        return 0;
    }
    return 1;
}

static PyObject *
as_tuple(const Encoded *made)
{
    return Py_BuildValue(
        "iny#y#", made->encoding, (Py_ssize_t)made->count, made->dictionary.data,
        (Py_ssize_t)made->dictionary.used, made->page.data, (Py_ssize_t)made->page.used
    );
}

static int
encode_all(const Column *columns, Encoded *made, Py_ssize_t count)
{
    size_t rows = 1;
    for (Py_ssize_t at = 0; at < count; at++) {
        rows = columns[at].rows > rows ? columns[at].rows : rows;
    }
    Room *room = calloc(1, sizeof *room);
    if (room == NULL) {
        return 0;
    }
    room->gathered = malloc(rows * 8);
    room->index = malloc(rows * 4);
    int is_done = room->gathered != NULL && room->index != NULL;
    for (Py_ssize_t at = 0; is_done && at < count; at++) {
        is_done = encode_column(&made[at], &columns[at], room);
    }
    free(room->gathered);
    free(room->index);
    free(room);
    return is_done;
}

/* parquet.encode_columns(columns) */
PyObject *
encode_columns(PyObject *module, PyObject *given)
{
    if (!PyList_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "columns come as a list");
        return NULL;
    }
    Py_ssize_t count = PyList_GET_SIZE(given), read = 0;
    Column *columns = PyMem_Calloc((size_t)count + 1, sizeof *columns);
    Encoded *made = PyMem_Calloc((size_t)count + 1, sizeof *made);
    PyObject *all = NULL;
    int is_done = columns != NULL && made != NULL;
    if (!is_done) {
        PyErr_NoMemory();
    }
    while (is_done && read < count) {
        is_done = read_column(&columns[read], PyList_GET_ITEM(given, read));
        read++;
    }
    if (is_done) {
        Py_BEGIN_ALLOW_THREADS
        is_done = encode_all(columns, made, count);
        Py_END_ALLOW_THREADS
        all = is_done ? PyList_New(count) : PyErr_NoMemory();
    }
    for (Py_ssize_t at = 0; all != NULL && at < count; at++) {
        PyObject *each = as_tuple(&made[at]);
        if (each == NULL) {
            Py_CLEAR(all);
            break;
        }
        PyList_SET_ITEM(all, at, each);
    }
    for (Py_ssize_t at = 0; at < read; at++) {
        PyBuffer_Release(&columns[at].values);
        PyBuffer_Release(&columns[at].second);
    }
    for (Py_ssize_t at = 0; made != NULL && at < count; at++) {
        free(made[at].dictionary.data);
        free(made[at].page.data);
    }
    PyMem_Free(columns);
    PyMem_Free(made);
    return all;
}
