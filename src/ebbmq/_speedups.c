/*
 * Compiled twins of functions in Python: see speedups.py.
 *
 * Each does exactly what the function of its name does in Python, on the same bytes. They call no
 * function in Python and keep nothing between calls; whoever calls holds the GIL. Those that fill
 * columns let it go meanwhile: what they read nobody changes, and what they fill is the caller's.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "_parquet.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <nmmintrin.h>
#define HAS_SSE42
#endif

#ifndef SOURCE_CRC
#error "compile with -DSOURCE_CRC=..: crc32 of the sources, by which speedups.py knows it"
#endif

/* Where the fields of a row stand: core/row.py. */
enum {
    PAGE_ROWS = 4096,
    ROW_BYTES = 64,
    ROW_WORDS = 8,
    AT_FLAGS = 1,
    AT_IMPORTANCE = 2,
    AT_RATE = 4,
    AT_ENQUEUED = 8,
    AT_DEAD = 16,
    AT_DUE = 24,
    AT_PLACE = 32,
    AT_SEGMENT = 40,
    AT_LENGTH = 48,
    AT_GENERATION = 56,
    AT_NONCE = 60,
    ROW_FIELDS = 15,
    SCHEDULED = 1,
    LEASED = 4
};
#define LOW48 ((UINT64_C(1) << 48) - 1)

/* Where the fields of a record stand, behind its position, which is checked and not written:
 * journal/record.py. */
enum {
    POSITION_BYTES = 8,
    HEADER_BYTES = 40,
    AT_MAGIC = 0,
    AT_VERSION = 2,
    AT_KIND = 3,
    AT_PAYLOAD_BYTES = 4,
    AT_PID = 8,
    AT_COUNT = 12,
    AT_FIRST = 16,
    AT_SYNCED = 24,
    AT_PAYLOAD_CRC = 32,
    AT_HEADER_CRC = 36,
    MAGIC = 0xB0EB,
    VERSION = 1,
    ALIGNMENT = 8
};

/* Columns of what rows and batches tell, and the longest id: node/feeding/unpacking.py. */
enum { ID_BYTES = 8 + 1 + 16, RATE_UNIT = 1000000000 };
enum { ROW_ENQUEUED_AT_MS, ROW_TTL_MS, ROW_LENGTH, ROW_WIDE };
enum { ROW_STATE, ROW_FLAGS, ROW_IMPORTANCE, ROW_FAILURES, ROW_GENERATION, ROW_NARROW };
enum {
    MESSAGES, NUMBER, BATCH_AT_MS, FIRST, LEASE_MS, BATCH_DELAY_MS, BATCH_KIND, CONSUMER, DIFFER,
    BATCH
};
enum { WORD_KIND, WORD_ENQUEUED, WORD_DEAD, WORD_DUE, WORD_SIZE, TOLD_WORDS };
enum { PID, QUEUE, PARTITION, EVENT, GRANTED, ENDS, ARRIVES, KIND };
enum {
    TOLD_NUMBER, TOLD_AT_MS, TOLD_PID, TOLD_SEQ, TOLD_BYTES, TOLD_ENQUEUED_AT_MS, TOLD_TTL_MS,
    TOLD_LATENCY_MS, TOLD_DELAY_MS, TOLD_WIDE
};
enum {
    TOLD_QUEUE, TOLD_PARTITION, TOLD_EVENT, TOLD_GENERATION, TOLD_IMPORTANCE, TOLD_FAILURES,
    TOLD_CONSUMER, TOLD_GIVEN, TOLD_NARROW
};
enum { SOME_TTL_MS, SOME_LATENCY_MS, SOME_DELAY_MS, SOME_CONSUMER, SOME_GIVEN, SOME };

/* Fields of what happened, and events by their numbers: core/happened.py. */
enum {
    H_EVENT, H_PID, H_AT_MS, H_MESSAGES, H_SEQS, H_ROWS, H_FIRST, H_LEASE_MS, H_DELAY_MS, H_NAME,
    H_GIVEN, H_GIVEN_FROM, H_FIELDS
};
enum { EVENT_PUBLISHED = 0, EVENT_SCHEDULED = 1, EVENT_REMOVED = 7 };
/* What a publisher may give, the decay rate last: core/arrivals.py, feed/events.py. */
enum { GIVEN_RATE = 2, GIVEN_VALUES = 3 };

/* Fields of a token, big end first: core/tokens.py. */
enum { TOKEN_BYTES = 24, TOKEN_CHARS = 2 * TOKEN_BYTES, TOKEN_FIELDS = 5 };

/* --- checksums --- */

#ifdef HAS_SSE42
/* Without the instruction for it, the library that Python calls is faster. */
__attribute__((target("sse4.2"))) static uint32_t
crc32c(uint32_t start, const uint8_t *data, size_t size)
{
    uint64_t wide = (uint32_t)~start;
    for (; size >= 8; size -= 8, data += 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        wide = _mm_crc32_u64(wide, word);
    }
    uint32_t crc = (uint32_t)wide;
    while (size--) {
        crc = _mm_crc32_u8(crc, *data++);
    }
    return ~crc;
}
#endif

/* --- arguments --- */

static int
has_count(const char *name, Py_ssize_t given, Py_ssize_t wanted)
{
    if (given == wanted) {
        return 1;
    }
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", name, wanted, given);
    return 0;
}

static int
to_u64(PyObject *number, uint64_t *out)
{
    PyObject *exact = PyLong_Check(number) ? Py_NewRef(number) : PyNumber_Index(number);
    if (exact == NULL) {
        return 0;
    }
    unsigned long value = PyLong_AsUnsignedLong(exact);
    Py_DECREF(exact);
    if (value == (unsigned long)-1 && PyErr_Occurred()) {
        return 0;
    }
    *out = value;
    return 1;
}

static int
to_bits(PyObject *number, int bits, uint32_t *out)
{
    uint64_t value;
    if (!to_u64(number, &value)) {
        return 0;
    }
    if (value >> bits) {
        PyErr_Format(PyExc_OverflowError, "%R has more than %d bits", number, bits);
        return 0;
    }
    *out = (uint32_t)value;
    return 1;
}

static int
to_u32(PyObject *number, uint32_t *out)
{
    return to_bits(number, 32, out);
}

/* The row at an offset of a page; `view` is to be released. */
static uint8_t *
row_in(PyObject *buffer, PyObject *offset, int flags, Py_buffer *view)
{
    Py_ssize_t at = PyLong_AsSsize_t(offset);
    if (at == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (PyObject_GetBuffer(buffer, view, flags) < 0) {
        return NULL;
    }
    if (at < 0 || view->len < ROW_BYTES || at > view->len - ROW_BYTES) {
        PyErr_Format(PyExc_IndexError, "no row is at %zd of %zd bytes", at, view->len);
        PyBuffer_Release(view);
        return NULL;
    }
    return (uint8_t *)view->buf + at;
}

/* Both ends are little, or this is not compiled. */

static uint32_t
load_u32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint64_t
load_u64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static void
store_u32(uint8_t *at, uint32_t value)
{
    memcpy(at, &value, sizeof value);
}

static void
store_u64(uint8_t *at, uint64_t value)
{
    memcpy(at, &value, sizeof value);
}

/* A tuple of unsigned numbers. */
static PyObject *
numbers(const uint64_t *values, Py_ssize_t count)
{
    PyObject *tuple = PyTuple_New(count);
    if (tuple == NULL) {
        return NULL;
    }
    for (Py_ssize_t at = 0; at < count; at++) {
        PyObject *number = PyLong_FromUnsignedLong(values[at]);
        if (number == NULL) {
            Py_DECREF(tuple);
            return NULL;
        }
        PyTuple_SET_ITEM(tuple, at, number);
    }
    return tuple;
}

/* --- rows --- */

/* row.read_row(buffer, at) */
static PyObject *
read_row(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer view;
    uint64_t values[ROW_FIELDS];
    const uint8_t *row;
    if (!has_count("read_row", count, 2)
        || (row = row_in(args[0], args[1], PyBUF_SIMPLE, &view)) == NULL) {
        return NULL;
    }
    for (int at = 0; at < 4; at++) {
        values[at] = row[at];
    }
    values[4] = load_u32(row + AT_RATE);
    for (int at = 0; at < 4; at++) {
        values[5 + at] = load_u64(row + AT_ENQUEUED + 8 * at);
    }
    for (int at = 0; at < 6; at++) {
        values[9 + at] = load_u32(row + AT_SEGMENT + 4 * at);
    }
    PyBuffer_Release(&view);
    return numbers(values, ROW_FIELDS);
}

/* row.mark_leased(buffer, at, deadline_ms, epoch, nonce) */
static PyObject *
mark_leased(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer view;
    uint64_t deadline_ms;
    uint32_t epoch, nonce;
    uint8_t *row;
    if (!has_count("mark_leased", count, 5) || !to_u64(args[2], &deadline_ms)
        || !to_u32(args[3], &epoch) || !to_u32(args[4], &nonce)
        || (row = row_in(args[0], args[1], PyBUF_WRITABLE, &view)) == NULL) {
        return NULL;
    }
    uint32_t generation = load_u32(row + AT_GENERATION);
    if (generation == UINT32_MAX) {
        PyBuffer_Release(&view);
        PyErr_SetString(PyExc_OverflowError, "no further lease of this row can be counted");
        return NULL;
    }
    row[0] = LEASED;
    store_u64(row + AT_DUE, (load_u64(row + AT_DUE) & ~LOW48) | deadline_ms);
    store_u64(row + AT_PLACE, (load_u64(row + AT_PLACE) & LOW48) | (uint64_t)epoch << 48);
    store_u32(row + AT_GENERATION, generation + 1);
    store_u32(row + AT_NONCE, nonce);
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

/* row.read_held(buffer, at, generation, epoch, nonce, now_ms) */
static PyObject *
read_held(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer view;
    uint64_t now_ms;
    uint32_t generation, epoch, nonce;
    const uint8_t *row;
    if (!has_count("read_held", count, 6) || !to_u32(args[2], &generation)
        || !to_u32(args[3], &epoch) || !to_u32(args[4], &nonce) || !to_u64(args[5], &now_ms)
        || (row = row_in(args[0], args[1], PyBUF_SIMPLE, &view)) == NULL) {
        return NULL;
    }
    int is_held = row[0] == LEASED && load_u32(row + AT_GENERATION) == generation
        && load_u32(row + AT_NONCE) == nonce && load_u64(row + AT_PLACE) >> 48 == epoch
        && (load_u64(row + AT_DUE) & LOW48) > now_ms;
    uint64_t values[] = {
        row[AT_FLAGS], row[AT_IMPORTANCE], load_u32(row + AT_SEGMENT), load_u32(row + AT_LENGTH)
    };
    PyBuffer_Release(&view);
    if (!is_held) {
        Py_RETURN_NONE;
    }
    return numbers(values, 4);
}

/* Two words of a row. */
typedef uint64_t Pair __attribute__((vector_size(16)));

static Pair
load_pair(const uint8_t *at)
{
    Pair pair;
    memcpy(&pair, at, sizeof pair);
    return pair;
}

/* The bits that some of the rows that stand one after the other have, and those that all have. */
static void
fold_pairs(const uint8_t *row, Py_ssize_t rows, uint64_t *some, uint64_t *every)
{
    enum { PAIRS = ROW_WORDS / 2 };
    Pair either[PAIRS], both[PAIRS];
    memcpy(either, some, sizeof either);
    memcpy(both, every, sizeof both);
    for (; rows--; row += ROW_BYTES) {
        for (int at = 0; at < PAIRS; at++) {
            Pair pair = load_pair(row + at * sizeof pair);
            either[at] |= pair;
            both[at] &= pair;
        }
    }
    memcpy(some, either, sizeof either);
    memcpy(every, both, sizeof both);
}

/* block.fold_rows(words) */
static PyObject *
fold_rows(PyObject *module, PyObject *words)
{
    Py_buffer view;
    uint64_t some[ROW_WORDS] = {0}, every[ROW_WORDS];
    memset(every, 0xFF, sizeof every);
    if (PyObject_GetBuffer(words, &view, PyBUF_STRIDES) < 0) {
        return NULL;
    }
    if (view.ndim != 2 || view.itemsize != 8 || view.shape[1] != ROW_WORDS) {
        PyBuffer_Release(&view);
        PyErr_SetString(PyExc_ValueError, "rows are eight words each");
        return NULL;
    }
    /* More than a page of them are the caller's own. */
    PyThreadState *state = view.shape[0] > PAGE_ROWS ? PyEval_SaveThread() : NULL;
    if (view.strides[0] == ROW_BYTES && view.strides[1] == 8) {
        fold_pairs(view.buf, view.shape[0], some, every);
    }
    else {
        for (Py_ssize_t row = 0; row < view.shape[0]; row++) {
            const uint8_t *at = (const uint8_t *)view.buf + row * view.strides[0];
            for (int word = 0; word < ROW_WORDS; word++) {
                uint64_t value = load_u64(at + word * view.strides[1]);
                some[word] |= value;
                every[word] &= value;
            }
        }
    }
    if (state != NULL) {
        PyEval_RestoreThread(state);
    }
    PyBuffer_Release(&view);
    PyObject *first = numbers(some, ROW_WORDS), *second = numbers(every, ROW_WORDS);
    PyObject *both = first && second ? PyTuple_Pack(2, first, second) : NULL;
    Py_XDECREF(first);
    Py_XDECREF(second);
    return both;
}

/* --- facts and records --- */

/* facts.grant_of_one(deadline_ms, nonce, epoch, now_ms, seq, generation) */
static PyObject *
grant_of_one(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    uint64_t deadline_ms, now_ms, seq;
    uint32_t nonce, epoch, generation;
    if (!has_count("grant_of_one", count, 6) || !to_u64(args[0], &deadline_ms)
        || !to_u32(args[1], &nonce) || !to_u32(args[2], &epoch) || !to_u64(args[3], &now_ms)
        || !to_u64(args[4], &seq) || !to_u32(args[5], &generation)) {
        return NULL;
    }
    uint8_t fact[48] = {0};
    store_u64(fact, deadline_ms);
    store_u32(fact + 8, nonce);
    store_u32(fact + 12, epoch);
    store_u64(fact + 16, now_ms);
    store_u32(fact + 28, 1);
    store_u64(fact + 32, seq);
    store_u32(fact + 40, 1);
    store_u32(fact + 44, generation);
    return PyBytes_FromStringAndSize((const char *)fact, sizeof fact);
}

/* facts.ack_of_one(seq) */
static PyObject *
ack_of_one(PyObject *module, PyObject *number)
{
    uint64_t seq;
    if (!to_u64(number, &seq)) {
        return NULL;
    }
    uint8_t fact[16] = {0};
    store_u64(fact, seq);
    store_u32(fact + 8, 1);
    return PyBytes_FromStringAndSize((const char *)fact, sizeof fact);
}

static int
by_number(const void *one, const void *other)
{
    int64_t a = *(const int64_t *)one, b = *(const int64_t *)other;
    return (a > b) - (a < b);
}

/* Runs of sorted numbers, 16 bytes each: first, how many, generation. Returns how many runs. */
static Py_ssize_t
spell_runs(uint8_t *out, const int64_t *seqs, Py_ssize_t count, uint32_t generation)
{
    Py_ssize_t runs = 0;
    for (Py_ssize_t at = 0; at < count; runs++) {
        Py_ssize_t begin = at;
        do {
            at++;
        } while (at < count && (uint64_t)seqs[at] == (uint64_t)seqs[at - 1] + 1);
        store_u64(out + 16 * runs, (uint64_t)seqs[begin]);
        store_u32(out + 16 * runs + 8, (uint32_t)(at - begin));
        store_u32(out + 16 * runs + 12, generation);
    }
    return runs;
}

/* facts.packed_runs(seqs, generation) */
static PyObject *
packed_runs(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer view;
    uint32_t generation;
    if (!has_count("packed_runs", count, 2) || !to_u32(args[1], &generation)
        || PyObject_GetBuffer(args[0], &view, PyBUF_STRIDES) < 0) {
        return NULL;
    }
    if (view.ndim != 1 || view.itemsize != 8 || view.shape[0] > UINT32_MAX) {
        PyBuffer_Release(&view);
        PyErr_SetString(PyExc_ValueError, "numbers of 64 bits are needed");
        return NULL;
    }
    Py_ssize_t rows = view.shape[0];
    int64_t *seqs = PyMem_New(int64_t, rows ? rows : 1);
    PyObject *packed = seqs ? PyBytes_FromStringAndSize(NULL, 16 * rows) : PyErr_NoMemory();
    if (packed == NULL) {
        PyMem_Free(seqs);
        PyBuffer_Release(&view);
        return NULL;
    }
    int rises = 1;
    for (Py_ssize_t at = 0; at < rows; at++) {
        seqs[at] = (int64_t)load_u64((const uint8_t *)view.buf + at * view.strides[0]);
        rises &= !at || seqs[at] > seqs[at - 1];
    }
    PyBuffer_Release(&view);
    if (!rises) {
        qsort(seqs, (size_t)rows, sizeof *seqs, by_number);
    }
    Py_ssize_t runs = spell_runs((uint8_t *)PyBytes_AS_STRING(packed), seqs, rows, generation);
    PyMem_Free(seqs);
    _PyBytes_Resize(&packed, 16 * runs);
    return packed;
}

#ifdef HAS_SSE42
/* record.pack_whole(store, position, kind, pid, count, first, synced, payload) */
static PyObject *
pack_whole(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    uint64_t position, first, synced;
    uint32_t store, kind, pid, rows;
    if (!has_count("pack_whole", count, 8) || !to_u32(args[0], &store)
        || !to_u64(args[1], &position) || !to_bits(args[2], 8, &kind) || !to_u32(args[3], &pid)
        || !to_u32(args[4], &rows) || !to_u64(args[5], &first) || !to_u64(args[6], &synced)) {
        return NULL;
    }
    char *payload;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(args[7], &payload, &size) < 0) {
        return NULL;
    }
    if (size > UINT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "a payload of 4 GiB or more");
        return NULL;
    }
    Py_ssize_t end = (HEADER_BYTES + size + ALIGNMENT - 1) & -ALIGNMENT;
    PyObject *whole = PyBytes_FromStringAndSize(NULL, end);
    if (whole == NULL) {
        return NULL;
    }
    uint8_t *record = (uint8_t *)PyBytes_AS_STRING(whole);
    uint8_t placed[POSITION_BYTES];
    store_u64(placed, position);
    record[AT_MAGIC] = MAGIC & 0xFF;
    record[AT_MAGIC + 1] = MAGIC >> 8;
    record[AT_VERSION] = VERSION;
    record[AT_KIND] = (uint8_t)kind;
    store_u32(record + AT_PAYLOAD_BYTES, (uint32_t)size);
    store_u32(record + AT_PID, pid);
    store_u32(record + AT_COUNT, rows);
    store_u64(record + AT_FIRST, first);
    store_u64(record + AT_SYNCED, synced);
    memcpy(record + HEADER_BYTES, payload, size);
    memset(record + HEADER_BYTES + size, 0, end - HEADER_BYTES - size);
    store_u32(record + AT_PAYLOAD_CRC, crc32c(0, (const uint8_t *)payload, size));
    store_u32(
        record + AT_HEADER_CRC,
        crc32c(crc32c(store, placed, POSITION_BYTES), record, AT_HEADER_CRC));
    return whole;
}
#endif

/* --- ids and tokens --- */

static const char hex_digits[] = "0123456789abcdef";
/* The value of a hex digit; above 15 for what is none. */
static uint8_t hex_values[256];

static void
prepare_hex(void)
{
    memset(hex_values, 0xFF, sizeof hex_values);
    for (int value = 0; value < 16; value++) {
        hex_values[(uint8_t)hex_digits[value]] = value;
        hex_values[(uint8_t)Py_TOUPPER(hex_digits[value])] = value;
    }
}

/* How many hex digits a number needs. */
static int
digits_of(uint64_t value)
{
    int digits = 1;
    while (value >>= 4) {
        digits++;
    }
    return digits;
}

static char *
spell(char *at, uint64_t value, int digits)
{
    for (int shift = 4 * digits - 4; shift >= 0; shift -= 4) {
        *at++ = hex_digits[value >> shift & 15];
    }
    return at;
}

/* outflow.message_id(pid, seq) */
static PyObject *
message_id(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    uint64_t seq;
    uint32_t pid;
    char text[8 + 1 + 16];
    if (!has_count("message_id", count, 2) || !to_u32(args[0], &pid) || !to_u64(args[1], &seq)) {
        return NULL;
    }
    char *end = spell(text, pid, digits_of(pid));
    *end++ = '-';
    end = spell(end, seq, digits_of(seq));
    PyObject *id = PyUnicode_New(end - text, 127);
    if (id != NULL) {
        memcpy(PyUnicode_1BYTE_DATA(id), text, end - text);
    }
    return id;
}

/* outflow.spell_each(spelling, seqs) */
static PyObject *
spell_each(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("spell_each", count, 2)) {
        return NULL;
    }
    if (!PyUnicode_Check(args[0]) || !PyUnicode_IS_COMPACT_ASCII(args[0])
        || !PyList_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "a spelling in ASCII and a list of numbers are needed");
        return NULL;
    }
    const char *before = (const char *)PyUnicode_1BYTE_DATA(args[0]);
    const char *end = before + PyUnicode_GET_LENGTH(args[0]);
    const char *hole = memchr(before, '%', end - before);
    int is_padded = hole != NULL && end - hole >= 5 && !memcmp(hole, "%016x", 5);
    if (!is_padded && (hole == NULL || end - hole < 2 || memcmp(hole, "%x", 2))) {
        PyErr_SetString(PyExc_ValueError, "a spelling has one of %x and %016x");
        return NULL;
    }
    const char *after = hole + (is_padded ? 5 : 2);
    PyObject *texts = PyList_New(PyList_GET_SIZE(args[1]));
    for (Py_ssize_t at = 0; texts != NULL && at < PyList_GET_SIZE(texts); at++) {
        if (at >= PyList_GET_SIZE(args[1])) {
            PyErr_SetString(PyExc_RuntimeError, "the list of numbers became shorter");
            Py_CLEAR(texts);
            break;
        }
        uint64_t seq;
        PyObject *text = NULL;
        if (to_u64(PyList_GET_ITEM(args[1], at), &seq)) {
            int digits = is_padded ? 16 : digits_of(seq);
            text = PyUnicode_New(hole - before + digits + (end - after), 127);
        }
        if (text == NULL) {
            Py_CLEAR(texts);
            break;
        }
        char *out = (char *)PyUnicode_1BYTE_DATA(text);
        memcpy(out, before, hole - before);
        out = spell(out + (hole - before), seq, is_padded ? 16 : digits_of(seq));
        memcpy(out, after, end - after);
        PyList_SET_ITEM(texts, at, text);
    }
    return texts;
}

/* tokens.spell_token(pid, seq, generation, epoch, nonce) */
static PyObject *
spell_token(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    uint64_t seq;
    uint32_t pid, generation, epoch, nonce;
    if (!has_count("spell_token", count, TOKEN_FIELDS) || !to_u32(args[0], &pid)
        || !to_u64(args[1], &seq) || !to_u32(args[2], &generation) || !to_u32(args[3], &epoch)
        || !to_u32(args[4], &nonce)) {
        return NULL;
    }
    PyObject *token = PyUnicode_New(TOKEN_CHARS, 127);
    if (token == NULL) {
        return NULL;
    }
    char *at = (char *)PyUnicode_1BYTE_DATA(token);
    at = spell(at, pid, 8);
    at = spell(at, seq, 16);
    at = spell(at, generation, 8);
    at = spell(at, epoch, 8);
    spell(at, nonce, 8);
    return token;
}

/* The characters of what may be a token; NULL, without an error, if it is none by its length. */
static const uint8_t *
token_chars(PyObject *token)
{
    if (!PyUnicode_Check(token)) {
        PyErr_Format(PyExc_TypeError, "a token is a str, not %s", Py_TYPE(token)->tp_name);
        return NULL;
    }
    if (!PyUnicode_IS_COMPACT_ASCII(token) || PyUnicode_GET_LENGTH(token) != TOKEN_CHARS) {
        return NULL;
    }
    return PyUnicode_1BYTE_DATA(token);
}

static PyObject *
none_or_error(void)
{
    if (PyErr_Occurred()) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* tokens.pack_tokens(tokens) */
static PyObject *
pack_tokens(PyObject *module, PyObject *tokens)
{
    if (!PyList_Check(tokens)) {
        PyErr_SetString(PyExc_TypeError, "tokens come as a list");
        return NULL;
    }
    Py_ssize_t count = PyList_GET_SIZE(tokens);
    if (!count) {
        Py_RETURN_NONE;
    }
    PyObject *packed = PyBytes_FromStringAndSize(NULL, count * TOKEN_BYTES);
    if (packed == NULL) {
        return NULL;
    }
    uint8_t *out = (uint8_t *)PyBytes_AS_STRING(packed);
    for (Py_ssize_t at = 0; at < count; at++) {
        const uint8_t *chars = token_chars(PyList_GET_ITEM(tokens, at));
        uint8_t seen = chars ? 0 : 0xFF;
        for (int byte = 0; chars && byte < TOKEN_BYTES; byte++) {
            uint8_t high = hex_values[*chars++], low = hex_values[*chars++];
            seen |= high | low;
            *out++ = (uint8_t)(high << 4 | low);
        }
        if (seen > 15) {
            Py_DECREF(packed);
            return none_or_error();
        }
    }
    return packed;
}

/* tokens.read_token(token) */
static PyObject *
read_token(PyObject *module, PyObject *token)
{
    const uint8_t *at = token_chars(token);
    if (at == NULL) {
        return none_or_error();
    }
    static const uint8_t digits[TOKEN_FIELDS] = {8, 16, 8, 8, 8};
    uint64_t fields[TOKEN_FIELDS];
    uint8_t seen = 0;
    for (int field = 0; field < TOKEN_FIELDS; field++) {
        uint64_t value = 0;
        for (int digit = 0; digit < digits[field]; digit++) {
            uint8_t next = hex_values[*at++];
            seen |= next;
            value = value << 4 | (next & 15);
        }
        fields[field] = value;
    }
    if (seen > 15) {
        Py_RETURN_NONE;
    }
    return numbers(fields, TOKEN_FIELDS);
}

/* --- columns --- */

/* Buffers of a call, which are released together. */
typedef struct {
    Py_buffer views[9];
    int count;
} Views;

static void
release(Views *views)
{
    while (views->count) {
        PyBuffer_Release(&views->views[--views->count]);
    }
}

/* One more buffer that stands in one piece; NULL with an error if it is none. */
static Py_buffer *
view_of(Views *views, PyObject *object, int flags)
{
    Py_buffer *view = &views->views[views->count];
    if (PyObject_GetBuffer(object, view, PyBUF_ND | flags) < 0) {
        return NULL;
    }
    views->count++;
    return view;
}

/* Whether a buffer is numbers of that size, in one or two dimensions (`lines` is -1 for one). */
static int
is_array(const Py_buffer *view, Py_ssize_t itemsize, Py_ssize_t lines)
{
    return view->itemsize == itemsize && view->ndim == (lines < 0 ? 1 : 2)
        && (lines < 0 || view->shape[0] == lines);
}

static int
is_lines(const Py_buffer *view, Py_ssize_t numbers)
{
    return view->ndim == 2 && view->itemsize == 8 && view->shape[1] == numbers;
}

static int64_t
enqueued_at_ms(const uint8_t *row)
{
    return (int64_t)(load_u64(row + AT_ENQUEUED) & LOW48);
}

static int64_t
ttl_ms(const uint8_t *row)
{
    int64_t dead_ms = (int64_t)(load_u64(row + AT_DEAD) & LOW48);
    return dead_ms ? dead_ms - enqueued_at_ms(row) : 0;
}

static int32_t
failures_of(const uint8_t *row)
{
    return (int32_t)(load_u64(row + AT_ENQUEUED) >> 48);
}

/* unpacking.keep_live(words, seqs) */
static PyObject *
keep_live(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Views views = {.count = 0};
    Py_buffer *words, *seqs;
    if (!has_count("keep_live", count, 2)
        || (words = view_of(&views, args[0], PyBUF_WRITABLE)) == NULL
        || (seqs = view_of(&views, args[1], PyBUF_WRITABLE)) == NULL) {
        release(&views);
        return NULL;
    }
    if (!is_lines(words, ROW_WORDS) || !is_array(seqs, 8, -1) || seqs->shape[0] != words->shape[0]) {
        release(&views);
        PyErr_SetString(PyExc_ValueError, "each row has a number");
        return NULL;
    }
    uint8_t *row = words->buf, *to = row;
    int64_t *seq = seqs->buf, *kept = seq;
    for (Py_ssize_t left = words->shape[0]; left--; row += ROW_BYTES, seq++) {
        if (*row) {
            memmove(to, row, ROW_BYTES);
            to += ROW_BYTES;
            *kept++ = *seq;
        }
    }
    Py_ssize_t live = kept - (int64_t *)seqs->buf;
    release(&views);
    return PyLong_FromSsize_t(live);
}

/* unpacking.unpack_rows(packed, wide, narrow, rates) */
static PyObject *
unpack_rows(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Views views = {.count = 0};
    Py_buffer *packed, *wide, *narrow, *rates;
    if (!has_count("unpack_rows", count, 4)
        || (packed = view_of(&views, args[0], PyBUF_SIMPLE)) == NULL
        || (wide = view_of(&views, args[1], PyBUF_WRITABLE)) == NULL
        || (narrow = view_of(&views, args[2], PyBUF_WRITABLE)) == NULL
        || (rates = view_of(&views, args[3], PyBUF_WRITABLE)) == NULL) {
        release(&views);
        return NULL;
    }
    Py_ssize_t rows = packed->len / ROW_BYTES;
    if (packed->len % ROW_BYTES || !is_array(wide, 8, ROW_WIDE) || wide->shape[1] != rows
        || !is_array(narrow, 4, ROW_NARROW) || narrow->shape[1] != rows
        || !is_array(rates, 8, -1) || rates->shape[0] != rows) {
        release(&views);
        PyErr_SetString(PyExc_ValueError, "each field of each row needs its place");
        return NULL;
    }
    const uint8_t *row = packed->buf;
    int64_t *to = wide->buf;
    int32_t *small = narrow->buf;
    double *rate = rates->buf;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t at = 0; at < rows; at++, row += ROW_BYTES) {
        to[at + ROW_ENQUEUED_AT_MS * rows] = enqueued_at_ms(row);
        to[at + ROW_TTL_MS * rows] = ttl_ms(row);
        to[at + ROW_LENGTH * rows] = load_u32(row + AT_LENGTH);
        small[at + ROW_STATE * rows] = row[0];
        small[at + ROW_FLAGS * rows] = row[AT_FLAGS];
        small[at + ROW_IMPORTANCE * rows] = row[AT_IMPORTANCE];
        small[at + ROW_FAILURES * rows] = failures_of(row);
        small[at + ROW_GENERATION * rows] = (int32_t)load_u32(row + AT_GENERATION);
        rate[at] = (double)load_u32(row + AT_RATE) / RATE_UNIT;
    }
    Py_END_ALLOW_THREADS
    release(&views);
    Py_RETURN_NONE;
}

/* How many words a batch has; -1 if it cannot have them. */
static int64_t
words_of(const int64_t *batch)
{
    if (batch[DIFFER] >> TOLD_WORDS) {
        return -1;
    }
    int64_t differ = __builtin_popcount((unsigned)batch[DIFFER]);
    return batch[MESSAGES] ? TOLD_WORDS + differ * batch[MESSAGES] : 0;
}

/* Whether batches are as many events as there is room for, have the words of their rows, name as
 * many messages as are named, are each of a kind that is known or of none, and of each stretches
 * tell what was given. */
static int
is_all_told(const int64_t *batch, Py_ssize_t batches, Py_ssize_t kinds, Py_ssize_t events,
            Py_ssize_t words, Py_ssize_t named, const int64_t *stretch, Py_ssize_t stretches)
{
    for (; batches--; batch += BATCH) {
        int64_t messages = batch[MESSAGES];
        if (messages < 0 || messages > events || batch[BATCH_KIND] < -1
            || batch[BATCH_KIND] >= kinds) {
            return 0;
        }
        events -= messages;
        if (batch[BATCH_KIND] < 0) {
            continue;
        }
        int64_t mine = words_of(batch);
        if (mine < 0 || mine > words) {
            return 0;
        }
        words -= mine;
        named -= batch[FIRST] < 0 ? messages : 0;
        for (; messages; stretch += 2) {
            if (!stretches-- || stretch[1] < 0 || stretch[1] > messages) {
                return 0;
            }
            messages -= stretch[1];
        }
    }
    for (; stretches; stretches--, stretch += 2) {
        if (stretch[1]) {
            return 0;
        }
    }
    return !events && !words && !named;
}

/* The words of a batch's rows: those of the first, and each of a word in which they differ, else
 * NULL. */
typedef struct {
    const uint64_t *first, *each[TOLD_WORDS];
} Told;

/* Finds them; returns where those of the next batch begin. */
static const uint64_t *
find_words(const int64_t *batch, const uint64_t *words, Told *told)
{
    told->first = words;
    const uint64_t *end = batch[MESSAGES] ? words + TOLD_WORDS : words;
    for (int word = 0; word < TOLD_WORDS; word++) {
        int is_same = !(batch[DIFFER] >> word & 1);
        told->each[word] = is_same ? NULL : end;
        end += is_same ? 0 : batch[MESSAGES];
    }
    return end;
}

static uint64_t
word_of(const Told *told, int word, int64_t at)
{
    return told->each[word] == NULL ? told->first[word] : told->each[word][at];
}

/* Columns of events, as long as there are events, and for those of SOME where they have a value: a bit each, and
 * how many. */
typedef struct {
    int64_t *wide;
    int32_t *narrow;
    double *rates;
    uint8_t *present;
    Py_ssize_t events, present_bytes;
    int64_t counts[SOME];
} Columns;

static void
mark(Columns *to, int which, int64_t at, int is_there)
{
    to->present[which * to->present_bytes + (at >> 3)] |= (uint8_t)(is_there << (at & 7));
    to->counts[which] += is_there;
}

/* So many events from a place on have a value. */
static void
mark_all(Columns *to, int which, int64_t from, int64_t events)
{
    uint8_t *present = to->present + which * to->present_bytes;
    int64_t at = from, end = from + events;
    for (; at < end && at & 7; at++) {
        present[at >> 3] |= (uint8_t)(1 << (at & 7));
    }
    if (end - at >= 8) {
        memset(present + (at >> 3), 0xFF, (size_t)(end - at) >> 3);
        at = end & ~INT64_C(7);
    }
    for (; at < end; at++) {
        present[at >> 3] |= (uint8_t)(1 << (at & 7));
    }
    to->counts[which] += events;
}

static void
fill_wide(int64_t *to, int64_t events, int64_t value)
{
    for (int64_t at = 0; at < events; at++) {
        to[at] = value;
    }
}

static void
fill_narrow(int32_t *to, int64_t events, int64_t value)
{
    for (int64_t at = 0; at < events; at++) {
        to[at] = (int32_t)value;
    }
}

/* What is the same for all events of a batch, or follows from their place in it. */
static void
tell_batch(const int64_t *batch, const int64_t *kind, const int64_t *seqs, Columns *to,
           int64_t place)
{
    const int64_t events = batch[MESSAGES], rows = to->events;
    int64_t *wide = to->wide + place, *number = wide + TOLD_NUMBER * rows;
    int64_t *seq = wide + TOLD_SEQ * rows;
    int32_t *narrow = to->narrow + place;
    for (int64_t at = 0; at < events; at++) {
        number[at] = batch[NUMBER] + at;
    }
    if (batch[FIRST] < 0) {
        memcpy(seq, seqs, (size_t)events * 8);
    }
    else {
        for (int64_t at = 0; at < events; at++) {
            seq[at] = batch[FIRST] + at;
        }
    }
    fill_wide(wide + TOLD_AT_MS * rows, events, batch[BATCH_AT_MS]);
    fill_wide(wide + TOLD_PID * rows, events, kind[PID]);
    fill_narrow(narrow + TOLD_QUEUE * rows, events, kind[QUEUE]);
    fill_narrow(narrow + TOLD_PARTITION * rows, events, kind[PARTITION]);
    fill_narrow(narrow + TOLD_EVENT * rows, events, kind[EVENT]);
    fill_narrow(narrow + TOLD_CONSUMER * rows, events, batch[CONSUMER]);
    if (batch[CONSUMER]) {
        mark_all(to, SOME_CONSUMER, place, events);
    }
}

/* What one word tells of the events of a batch, which is mostly the same for all. */
static void
tell_sizes(const int64_t *batch, const int64_t *kind, const Told *told, Columns *to, int64_t place)
{
    int64_t *bytes = to->wide + TOLD_BYTES * to->events + place;
    int32_t *generation = to->narrow + TOLD_GENERATION * to->events + place;
    const uint64_t *each = told->each[WORD_SIZE], first = told->first[WORD_SIZE];
    if (each == NULL) {
        fill_wide(bytes, batch[MESSAGES], (uint32_t)first);
        fill_narrow(generation, batch[MESSAGES], (int32_t)((first >> 32) + (uint64_t)kind[GRANTED]));
        return;
    }
    for (int64_t at = 0; at < batch[MESSAGES]; at++) {
        bytes[at] = (uint32_t)each[at];
        generation[at] = (int32_t)((each[at] >> 32) + (uint64_t)kind[GRANTED]);
    }
}

static void
tell_kinds(const int64_t *batch, const Told *told, Columns *to, int64_t place)
{
    int32_t *importance = to->narrow + TOLD_IMPORTANCE * to->events + place;
    double *rate = to->rates + place;
    const uint64_t *each = told->each[WORD_KIND], first = told->first[WORD_KIND];
    if (each == NULL) {
        fill_narrow(importance, batch[MESSAGES], first >> 8 * AT_IMPORTANCE & 0xFF);
        double same = (double)(first >> 32) / RATE_UNIT;
        for (int64_t at = 0; at < batch[MESSAGES]; at++) {
            rate[at] = same;
        }
        return;
    }
    for (int64_t at = 0; at < batch[MESSAGES]; at++) {
        importance[at] = (int32_t)(each[at] >> 8 * AT_IMPORTANCE & 0xFF);
        rate[at] = (double)(each[at] >> 32) / RATE_UNIT;
    }
}

/* When messages were enqueued, how often they failed, and for how long they may wait. */
static void
tell_ages(const int64_t *batch, const Told *told, Columns *to, int64_t place)
{
    int64_t *enqueued = to->wide + TOLD_ENQUEUED_AT_MS * to->events + place;
    int64_t *ttl = to->wide + TOLD_TTL_MS * to->events + place;
    int32_t *failures = to->narrow + TOLD_FAILURES * to->events + place;
    if (told->each[WORD_ENQUEUED] == NULL && told->each[WORD_DEAD] == NULL) {
        int64_t since = (int64_t)(told->first[WORD_ENQUEUED] & LOW48);
        int64_t end = (int64_t)told->first[WORD_DEAD], waits = end ? end - since : 0;
        fill_wide(enqueued, batch[MESSAGES], since);
        fill_wide(ttl, batch[MESSAGES], waits);
        fill_narrow(failures, batch[MESSAGES], (int64_t)(told->first[WORD_ENQUEUED] >> 48));
        if (waits) {
            mark_all(to, SOME_TTL_MS, place, batch[MESSAGES]);
        }
        return;
    }
    for (int64_t at = 0; at < batch[MESSAGES]; at++) {
        uint64_t word = word_of(told, WORD_ENQUEUED, at);
        int64_t end = (int64_t)word_of(told, WORD_DEAD, at);
        enqueued[at] = (int64_t)(word & LOW48);
        failures[at] = (int32_t)(word >> 48);
        ttl[at] = end ? end - enqueued[at] : 0;
        if (ttl[at]) {
            mark(to, SOME_TTL_MS, place + at, 1);
        }
    }
}

/* How long leases lasted that ended by a batch; -1 where none did. */
static void
tell_latencies(const int64_t *batch, const int64_t *kind, const Told *told, Columns *to,
               int64_t place)
{
    int64_t *latency_ms = to->wide + TOLD_LATENCY_MS * to->events + place;
    if (!kind[ENDS]) {
        fill_wide(latency_ms, batch[MESSAGES], -1);
        return;
    }
    for (int64_t at = 0; at < batch[MESSAGES]; at++) {
        int64_t due_ms = (int64_t)word_of(told, WORD_DUE, at);
        int64_t lasted_ms = batch[BATCH_AT_MS] - due_ms + batch[LEASE_MS];
        latency_ms[at] = lasted_ms < 0 ? 0 : lasted_ms;
    }
    mark_all(to, SOME_LATENCY_MS, place, batch[MESSAGES]);
}

/* How long messages cannot be leased; 0 for those that can. */
static void
tell_delays(const int64_t *batch, const int64_t *kind, const Told *told, Columns *to,
            int64_t place)
{
    int64_t *delay_ms = to->wide + TOLD_DELAY_MS * to->events + place;
    int is_ready = told->each[WORD_KIND] == NULL && (uint8_t)told->first[WORD_KIND] != SCHEDULED;
    if (!kind[ARRIVES] || is_ready) {
        int64_t same = kind[ARRIVES] ? 0 : batch[BATCH_DELAY_MS];
        fill_wide(delay_ms, batch[MESSAGES], same);
        if (same) {
            mark_all(to, SOME_DELAY_MS, place, batch[MESSAGES]);
        }
        return;
    }
    for (int64_t at = 0; at < batch[MESSAGES]; at++) {
        int64_t due_ms = (int64_t)word_of(told, WORD_DUE, at);
        int is_waiting = (uint8_t)word_of(told, WORD_KIND, at) == SCHEDULED;
        delay_ms[at] = is_waiting ? due_ms - batch[BATCH_AT_MS] : 0;
        if (delay_ms[at]) {
            mark(to, SOME_DELAY_MS, place + at, 1);
        }
    }
}

/* What publishers gave of the messages of a batch; returns where the next batch's stretches begin. */
static const int64_t *
tell_given(const int64_t *batch, const int64_t *stretch, Columns *to, int64_t place)
{
    int32_t *given = to->narrow + TOLD_GIVEN * to->events;
    for (int64_t end = place + batch[MESSAGES]; place < end; stretch += 2) {
        fill_narrow(given + place, stretch[1], stretch[0]);
        if (stretch[0]) {
            mark_all(to, SOME_GIVEN, place, stretch[1]);
        }
        place += stretch[1];
    }
    return stretch;
}

/* unpacking.unpack_batches(words, batches, kinds, seqs, given, wide, narrow, rates, present) */
static PyObject *
unpack_batches(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    enum { WORDS, BATCHES, KINDS, SEQS, GIVEN, WIDE, NARROW, RATES, PRESENT, BUFFERS };
    Views views = {.count = 0};
    if (!has_count("unpack_batches", count, BUFFERS)) {
        return NULL;
    }
    for (int at = 0; at < BUFFERS; at++) {
        if (view_of(&views, args[at], at < WIDE ? PyBUF_SIMPLE : PyBUF_WRITABLE) == NULL) {
            release(&views);
            return NULL;
        }
    }
    const Py_buffer *view = views.views, *batches = &view[BATCHES], *given = &view[GIVEN];
    Py_ssize_t events = is_array(&view[WIDE], 8, TOLD_WIDE) ? view[WIDE].shape[1] : -1;
    Py_ssize_t present_bytes = (events + 7) / 8;
    if (!is_array(&view[WORDS], 8, -1) || !is_lines(batches, BATCH) || !is_lines(&view[KINDS], KIND)
        || !is_array(&view[SEQS], 8, -1) || !is_lines(given, 2) || events < 0
        || !is_array(&view[NARROW], 4, TOLD_NARROW) || view[NARROW].shape[1] != events
        || !is_array(&view[RATES], 8, -1) || view[RATES].shape[0] != events
        || !is_array(&view[PRESENT], 1, SOME) || view[PRESENT].shape[1] != present_bytes
        || !is_all_told(batches->buf, batches->shape[0], view[KINDS].shape[0], events,
                        view[WORDS].shape[0],
                        view[SEQS].shape[0], given->buf, given->shape[0])) {
        release(&views);
        PyErr_SetString(
            PyExc_ValueError, "each batch has as many words as its messages, and each event its place"
        );
        return NULL;
    }
    Columns to = {
        .wide = view[WIDE].buf, .narrow = view[NARROW].buf, .rates = view[RATES].buf,
        .present = view[PRESENT].buf, .events = events, .present_bytes = present_bytes
    };
    const int64_t *batch = batches->buf, *end = batch + batches->shape[0] * BATCH;
    const int64_t *named = view[SEQS].buf, *kinds = view[KINDS].buf, *stretch = given->buf;
    const uint64_t *words = view[WORDS].buf;
    int64_t place = 0;
    Py_BEGIN_ALLOW_THREADS
    memset(to.present, 0, (size_t)(SOME * present_bytes));
    for (; batch < end; place += batch[MESSAGES], batch += BATCH) {
        if (batch[BATCH_KIND] < 0) {
            continue; /* told otherwise: the caller fills its place */
        }
        const int64_t *kind = kinds + batch[BATCH_KIND] * KIND;
        tell_batch(batch, kind, named, &to, place);
        Told told;
        words = find_words(batch, words, &told);
        if (batch[MESSAGES]) {
            tell_sizes(batch, kind, &told, &to, place);
            tell_kinds(batch, &told, &to, place);
            tell_ages(batch, &told, &to, place);
            tell_latencies(batch, kind, &told, &to, place);
            tell_delays(batch, kind, &told, &to, place);
        }
        stretch = tell_given(batch, stretch, &to, place);
        named += batch[FIRST] < 0 ? batch[MESSAGES] : 0;
    }
    Py_END_ALLOW_THREADS
    release(&views);
    PyObject *counts = PyTuple_New(SOME);
    for (int which = 0; counts != NULL && which < SOME; which++) {
        PyObject *number = PyLong_FromLongLong(to.counts[which]);
        if (number == NULL) {
            Py_CLEAR(counts);
            break;
        }
        PyTuple_SET_ITEM(counts, which, number);
    }
    return counts;
}

/* unpacking.spell_ids(pids, seqs, ends, text) */
static PyObject *
spell_ids(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Views views = {.count = 0};
    Py_buffer *pids, *seqs, *ends, *text;
    if (!has_count("spell_ids", count, 4)
        || (pids = view_of(&views, args[0], PyBUF_SIMPLE)) == NULL
        || (seqs = view_of(&views, args[1], PyBUF_SIMPLE)) == NULL
        || (ends = view_of(&views, args[2], PyBUF_WRITABLE)) == NULL
        || (text = view_of(&views, args[3], PyBUF_WRITABLE)) == NULL) {
        release(&views);
        return NULL;
    }
    Py_ssize_t ids = is_array(pids, 8, -1) ? pids->shape[0] : -1;
    if (ids < 0 || ids > INT32_MAX / ID_BYTES || !is_array(seqs, 8, -1) || seqs->shape[0] != ids
        || !is_array(ends, 4, -1) || ends->shape[0] != ids + 1 || text->len < ids * ID_BYTES) {
        release(&views);
        PyErr_SetString(PyExc_ValueError, "each message needs its number and room for its id");
        return NULL;
    }
    const uint64_t *pid = pids->buf, *seq = seqs->buf;
    char *const start = text->buf, *to = start;
    int32_t *end = ends->buf;
    Py_BEGIN_ALLOW_THREADS
    *end++ = 0;
    for (Py_ssize_t at = 0; at < ids; at++) {
        uint32_t partition = (uint32_t)pid[at];
        if (partition) {
            to = spell(to, partition, digits_of(partition));
            *to++ = '-';
            to = spell(to, seq[at], digits_of(seq[at]));
        }
        *end++ = (int32_t)(to - start);
    }
    Py_END_ALLOW_THREADS
    Py_ssize_t used = to - start;
    release(&views);
    return PyLong_FromSsize_t(used);
}

/* --- what happened --- */

/* What batches are joined in, and what is counted of them: joining.py. */
enum { PART_WORDS, PART_BATCHES, PART_SEQS, PART_STRETCHES, PARTS };
enum { COUNT_NUMBER = PARTS, COUNT_EVENTS, COUNT_BYTES, COUNT_BYTES_LEFT, COUNTS };
enum { EVENTS_MAX = 128 * 1024, JOINED_BATCH_BYTES = 8 * (BATCH + 2 + TOLD_WORDS) };
enum { KEYS_MAX = 16 * 1024, KEY_BYTES = 256, CHAR_BYTES = 4 };
/* What is told by codes: event and partition, name of a lease, what a publisher gave. */
enum { CODES_KINDS, CODES_NAMES, CODES_GIVEN, CODES };

/* A bytearray that has more room than is used, and how much is. */
typedef struct {
    PyObject *array;
    size_t used;
} Part;

/* Where so many bytes more go; NULL with an error if there is no memory for them. */
static uint8_t *
more(Part *part, size_t bytes)
{
    size_t size = (size_t)PyByteArray_GET_SIZE(part->array);
    if (bytes > size - part->used
        && (bytes > PY_SSIZE_T_MAX / 4
            || PyByteArray_Resize(part->array, (Py_ssize_t)(2 * size + bytes)) < 0)) {
        return NULL;
    }
    uint8_t *at = (uint8_t *)PyByteArray_AS_STRING(part->array) + part->used;
    part->used += bytes;
    return at;
}

static int
add_i64(Part *part, int64_t value)
{
    uint8_t *at = more(part, 8);
    if (at != NULL) {
        store_u64(at, (uint64_t)value);
    }
    return at != NULL;
}

static int
to_i64(PyObject *number, int64_t *out)
{
    *out = PyLong_AsLongLong(number);
    return *out != -1 || !PyErr_Occurred();
}

/* A row that was read, as it stands in a page. */
static int
pack_row(uint8_t *to, PyObject *row)
{
    static const uint8_t bytes[ROW_FIELDS] = {1, 1, 1, 1, 4, 8, 8, 8, 8, 4, 4, 4, 4, 4, 4};
    if (!PyTuple_Check(row) || PyTuple_GET_SIZE(row) != ROW_FIELDS) {
        PyErr_SetString(PyExc_TypeError, "a row is a tuple of its fields");
        return 0;
    }
    for (int field = 0; field < ROW_FIELDS; to += bytes[field++]) {
        uint64_t value;
        if (!to_u64(PyTuple_GET_ITEM(row, field), &value)) {
            return 0;
        }
        if (bytes[field] < 8 && value >> 8 * bytes[field]) {
            PyErr_SetString(PyExc_OverflowError, "a field of a row is too large for it");
            return 0;
        }
        memcpy(to, &value, bytes[field]);
    }
    return 1;
}

/* What a buffer holds, in one piece. */
static int
add_buffer(Part *part, PyObject *object, Py_ssize_t itemsize)
{
    Py_buffer view;
    if (PyObject_GetBuffer(object, &view, PyBUF_FULL_RO) < 0) {
        return 0;
    }
    uint8_t *at = NULL;
    if (itemsize && view.itemsize != itemsize) {
        PyErr_Format(PyExc_ValueError, "numbers of %zd bytes are needed", itemsize);
    }
    else {
        at = more(part, (size_t)view.len);
    }
    int is_done = at != NULL && PyBuffer_ToContiguous(at, &view, view.len, 'C') == 0;
    PyBuffer_Release(&view);
    return is_done;
}

/* Rows in one piece, in whatever form verbs have them: where they are, or copied. */
typedef struct {
    const uint8_t *data;
    uint8_t *copied;
    size_t bytes;
    Py_buffer view;
} Rows;

static void
close_rows(Rows *rows)
{
    PyMem_Free(rows->copied);
    PyBuffer_Release(&rows->view);
}

static int
copy_rows(Rows *rows, size_t bytes)
{
    rows->copied = PyMem_Malloc(bytes + 1);
    if (rows->copied == NULL) {
        PyErr_NoMemory();
    }
    rows->data = rows->copied;
    rows->bytes = bytes;
    return rows->copied != NULL;
}

/* Opens them; they are to be closed whatever comes of it. */
static int
open_rows(Rows *rows, PyObject *known)
{
    if (PyTuple_Check(known) || PyList_Check(known)) {
        Py_ssize_t count = PySequence_Fast_GET_SIZE(known);
        if (!copy_rows(rows, (size_t)count * ROW_BYTES)) {
            return 0;
        }
        for (Py_ssize_t at = 0; at < count; at++) {
            /* To read a number may run code that makes a list shorter. */
            if (at >= PySequence_Fast_GET_SIZE(known)
                || !pack_row(rows->copied + at * ROW_BYTES, PySequence_Fast_GET_ITEM(known, at))) {
                if (!PyErr_Occurred()) {
                    PyErr_SetString(PyExc_ValueError, "rows went while they were read");
                }
                return 0;
            }
        }
        return 1;
    }
    if (PyObject_GetBuffer(known, &rows->view, PyBUF_FULL_RO) < 0) {
        return 0;
    }
    if (PyBuffer_IsContiguous(&rows->view, 'C')) {
        rows->data = rows->view.buf;
        rows->bytes = (size_t)rows->view.len;
        return 1;
    }
    return copy_rows(rows, (size_t)rows->view.len)
        && PyBuffer_ToContiguous(rows->copied, &rows->view, rows->view.len, 'C') == 0;
}

/* Numbers of messages in any of their forms. */
static int
add_seqs(Part *part, PyObject *seqs)
{
    if (PyObject_CheckBuffer(seqs)) {
        return add_buffer(part, seqs, 8);
    }
    PyObject *fast = PySequence_Fast(seqs, "messages are named by a sequence of numbers");
    int is_done = fast != NULL;
    for (Py_ssize_t at = 0; is_done && at < PySequence_Fast_GET_SIZE(fast); at++) {
        uint64_t seq;
        is_done = to_u64(PySequence_Fast_GET_ITEM(fast, at), &seq) && add_i64(part, (int64_t)seq);
    }
    Py_XDECREF(fast);
    return is_done;
}

/* Of rows only those that wait for their time, and which they are. */
static int
keep_scheduled(Rows *rows, Part *seqs, int64_t first)
{
    const uint8_t *from = rows->data, *end = from + rows->bytes;
    uint8_t *copied = PyMem_Malloc(rows->bytes + 1), *to = copied;
    int is_done = copied != NULL;
    if (!is_done) {
        PyErr_NoMemory();
    }
    for (; is_done && from + ROW_BYTES <= end; from += ROW_BYTES, first++) {
        if (*from == SCHEDULED) {
            memcpy(to, from, ROW_BYTES);
            to += ROW_BYTES;
            is_done = add_i64(seqs, first);
        }
    }
    PyMem_Free(rows->copied);
    rows->data = rows->copied = copied;
    rows->bytes = (size_t)(to - copied);
    return is_done;
}

/* The words of a row that are told of, what is not told masked out. */
static void
told_words(const uint8_t *row, uint64_t *to)
{
    to[WORD_KIND] = load_u64(row) & UINT64_C(0xFFFFFFFF00FF00FF);
    to[WORD_ENQUEUED] = load_u64(row + AT_ENQUEUED);
    to[WORD_DEAD] = load_u64(row + AT_DEAD) & LOW48;
    to[WORD_DUE] = load_u64(row + AT_DUE) & LOW48;
    to[WORD_SIZE] = load_u32(row + AT_LENGTH) | (uint64_t)load_u32(row + AT_GENERATION) << 32;
}

/* A row that has the bits in which rows differ; of what no event tells, none. */
static void
fold_differences(const Rows *rows, uint8_t *differ)
{
    const uint8_t *row = rows->data, *end = row + rows->bytes;
    const Pair first[3] = {load_pair(row), load_pair(row + AT_DEAD), load_pair(row + AT_LENGTH)};
    Pair bits[3] = {{0, 0}, {0, 0}, {0, 0}};
    for (row += ROW_BYTES; row < end; row += ROW_BYTES) {
        bits[0] |= load_pair(row) ^ first[0];
        bits[1] |= load_pair(row + AT_DEAD) ^ first[1];
        bits[2] |= load_pair(row + AT_LENGTH) ^ first[2];
    }
    memset(differ, 0, ROW_BYTES);
    memcpy(differ, &bits[0], sizeof bits[0]);
    memcpy(differ + AT_DEAD, &bits[1], sizeof bits[1]);
    memcpy(differ + AT_LENGTH, &bits[2], sizeof bits[2]);
}

/* The words of the first row, then all of those in which rows differ; returns which these are, -1
 * with an error. */
static int64_t
add_words(Part *part, const Rows *rows, int64_t messages)
{
    if (rows->bytes % ROW_BYTES || rows->bytes / ROW_BYTES != (size_t)messages) {
        PyErr_SetString(PyExc_ValueError, "each batch has as many rows as messages");
        return -1;
    }
    if (!messages) {
        return 0;
    }
    uint8_t bits[ROW_BYTES];
    uint64_t told[TOLD_WORDS];
    uint8_t *to = more(part, sizeof told);
    if (to == NULL) {
        return -1;
    }
    told_words(rows->data, told);
    memcpy(to, told, sizeof told);
    fold_differences(rows, bits);
    told_words(bits, told);
    int64_t differ = 0;
    for (int word = 0; word < TOLD_WORDS; word++) {
        if (!told[word]) {
            continue;
        }
        differ |= INT64_C(1) << word;
        to = more(part, (size_t)messages * 8);
        if (to == NULL) {
            return -1;
        }
        for (size_t at = 0; at < rows->bytes; at += ROW_BYTES, to += 8) {
            uint64_t each[TOLD_WORDS];
            told_words(rows->data + at, each);
            memcpy(to, &each[word], 8);
        }
    }
    return differ;
}

/* The code of a key, which is given the next one if it has none; -1 with an error. */
static int64_t
code_of(PyObject *codes, PyObject *key)
{
    PyObject *found = PyDict_GetItemWithError(codes, key);
    if (found != NULL || PyErr_Occurred()) {
        return found == NULL ? -1 : PyLong_AsLongLong(found);
    }
    int64_t next = PyDict_GET_SIZE(codes);
    PyObject *code = PyLong_FromLongLong(next);
    int is_kept = code != NULL && PyDict_SetItem(codes, key, code) == 0;
    Py_XDECREF(code);
    return is_kept ? next : -1;
}

/* Two objects as one. */
static PyObject *
pair_of(PyObject *first, PyObject *second)
{
    PyObject *pair = PyTuple_New(2);
    if (pair != NULL) {
        PyTuple_SET_ITEM(pair, 0, Py_NewRef(first));
        PyTuple_SET_ITEM(pair, 1, Py_NewRef(second));
    }
    return pair;
}

/* The code of the name of a lease, most of which have none; -1 with an error. */
static int64_t
name_code(PyObject *codes, PyObject *name)
{
    if (!PyUnicode_Check(name)) {
        PyErr_SetString(PyExc_TypeError, "a name is text");
        return -1;
    }
    return PyUnicode_GetLength(name) ? code_of(codes, name) : 0;
}

/* How many keys have codes. */
static Py_ssize_t
keys_of(PyObject *const *codes)
{
    return PyDict_GET_SIZE(codes[CODES_KINDS]) + PyDict_GET_SIZE(codes[CODES_NAMES])
        + PyDict_GET_SIZE(codes[CODES_GIVEN]);
}

/* Forget keys until as many of each have codes as before; an error that is set stays. */
__attribute__((noinline)) static void
forget_keys(PyObject *const *codes, const Py_ssize_t *known)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    for (int at = 0; at < CODES; at++) {
        while (PyDict_GET_SIZE(codes[at]) > known[at]) {
            PyObject *last = PyObject_CallMethod(codes[at], "popitem", NULL);
            if (last == NULL) {
                PyErr_Clear();
                break;
            }
            Py_DECREF(last);
        }
    }
    PyErr_Restore(type, value, trace);
}

/* Which values a publisher gave, and the rate where it did, by code; -1 with an error. */
static int64_t
given_code(PyObject *codes, PyObject *given)
{
    if (given == Py_None) {
        return code_of(codes, given);
    }
    if (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) != GIVEN_VALUES) {
        PyErr_SetString(PyExc_TypeError, "what was given is none, or three values");
        return -1;
    }
    long which = 0;
    for (int at = 0; at < GIVEN_VALUES; at++) {
        which |= (long)(PyTuple_GET_ITEM(given, at) != Py_None) << at;
    }
    PyObject *bits = PyLong_FromLong(which);
    PyObject *key = bits == NULL ? NULL : pair_of(bits, PyTuple_GET_ITEM(given, GIVEN_RATE));
    int64_t code = key == NULL ? -1 : code_of(codes, key);
    Py_XDECREF(bits);
    Py_XDECREF(key);
    return code;
}

/* What publishers gave, of each stretch of the messages of a batch. */
static int
add_stretches(Part *part, PyObject *batch, PyObject *codes, int64_t messages)
{
    PyObject *given = PyTuple_GET_ITEM(batch, H_GIVEN);
    PyObject *from = PyTuple_GET_ITEM(batch, H_GIVEN_FROM);
    if (!(PyTuple_Check(given) || PyList_Check(given))
        || !(PyTuple_Check(from) || PyList_Check(from))) {
        PyErr_SetString(PyExc_TypeError, "what was given comes as a list or a tuple");
        return 0;
    }
    Py_ssize_t count = PySequence_Fast_GET_SIZE(given);
    if (count != PySequence_Fast_GET_SIZE(from)) {
        PyErr_SetString(PyExc_ValueError, "each stretch begins somewhere");
        return 0;
    }
    int64_t begin = 0, end;
    for (Py_ssize_t at = 0; at < count; at++, begin = end) {
        int64_t code = given_code(codes, PySequence_Fast_GET_ITEM(given, at));
        end = messages;
        if (code < 0
            || (at + 1 < count && !to_i64(PySequence_Fast_GET_ITEM(from, at + 1), &end))
            || !add_i64(part, code) || !add_i64(part, end - begin)) {
            return 0;
        }
    }
    return 1;
}

/* The words of a batch's rows, and its messages where they are named; returns in which words rows
 * differ, -1 with an error. */
static int64_t
join_rows(Part *parts, PyObject *batch, int64_t event, int64_t first, int64_t messages)
{
    PyObject *seqs = PyTuple_GET_ITEM(batch, H_SEQS);
    Rows rows = {.data = NULL};
    int64_t differ = -1;
    if (open_rows(&rows, PyTuple_GET_ITEM(batch, H_ROWS))
        && (event != EVENT_SCHEDULED || keep_scheduled(&rows, &parts[PART_SEQS], first))) {
        differ = add_words(&parts[PART_WORDS], &rows, messages);
    }
    close_rows(&rows);
    if (differ >= 0 && event != EVENT_SCHEDULED && seqs != Py_None
        && !add_seqs(&parts[PART_SEQS], seqs)) {
        return -1;
    }
    return differ;
}

static int
join_happened(Part *parts, PyObject *batch, int64_t number, int64_t messages,
              PyObject *const *codes)
{
    int64_t event, at_ms, first, lease_ms, delay_ms;
    if (!to_i64(PyTuple_GET_ITEM(batch, H_EVENT), &event)
        || !to_i64(PyTuple_GET_ITEM(batch, H_AT_MS), &at_ms)
        || !to_i64(PyTuple_GET_ITEM(batch, H_FIRST), &first)
        || !to_i64(PyTuple_GET_ITEM(batch, H_LEASE_MS), &lease_ms)
        || !to_i64(PyTuple_GET_ITEM(batch, H_DELAY_MS), &delay_ms)) {
        return 0;
    }
    int64_t differ = join_rows(parts, batch, event, first, messages);
    if (differ < 0) {
        return 0;
    }
    if (event == EVENT_SCHEDULED || PyTuple_GET_ITEM(batch, H_SEQS) != Py_None) {
        first = -1;
    }
    PyObject *key = pair_of(PyTuple_GET_ITEM(batch, H_EVENT), PyTuple_GET_ITEM(batch, H_PID));
    int64_t kind = key == NULL ? -1 : code_of(codes[CODES_KINDS], key);
    Py_XDECREF(key);
    int64_t name = kind < 0 ? -1 : name_code(codes[CODES_NAMES], PyTuple_GET_ITEM(batch, H_NAME));
    uint8_t *to = name < 0 ? NULL : more(&parts[PART_BATCHES], BATCH * 8);
    if (to == NULL) {
        return 0;
    }
    const int64_t told[BATCH] = {
        messages, number, at_ms, first, lease_ms, delay_ms, kind, name, differ
    };
    memcpy(to, told, sizeof told);
    int is_given = event == EVENT_PUBLISHED ? PyObject_IsTrue(PyTuple_GET_ITEM(batch, H_GIVEN)) : 0;
    if (is_given) {
        return is_given > 0
            && add_stretches(&parts[PART_STRETCHES], batch, codes[CODES_GIVEN], messages);
    }
    return add_i64(&parts[PART_STRETCHES], 0) && add_i64(&parts[PART_STRETCHES], messages);
}

/* joining.join_batch(told, into) */
static PyObject *
join_batch(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    enum { ARRAYS, COUNTED, KNOWN, INTO = KNOWN + CODES };
    if (!has_count("join_batch", count, 2)) {
        return NULL;
    }
    PyObject *batch = args[0], *into = args[1];
    if (!PyTuple_Check(batch) || !PyTuple_Check(into) || PyTuple_GET_SIZE(into) != INTO
        || !PyTuple_Check(PyTuple_GET_ITEM(into, ARRAYS))
        || PyTuple_GET_SIZE(PyTuple_GET_ITEM(into, ARRAYS)) != PARTS
        || !PyDict_CheckExact(PyTuple_GET_ITEM(into, KNOWN + CODES_KINDS))
        || !PyDict_CheckExact(PyTuple_GET_ITEM(into, KNOWN + CODES_NAMES))
        || !PyDict_CheckExact(PyTuple_GET_ITEM(into, KNOWN + CODES_GIVEN))) {
        PyErr_SetString(PyExc_TypeError, "a batch is needed, and what it goes to");
        return NULL;
    }
    int64_t event = EVENT_REMOVED, messages = 0;
    if (PyTuple_GET_SIZE(batch) == H_FIELDS
        && (!to_i64(PyTuple_GET_ITEM(batch, H_EVENT), &event)
            || !to_i64(PyTuple_GET_ITEM(batch, H_MESSAGES), &messages))) {
        return NULL;
    }
    if (event == EVENT_REMOVED) {
        Py_RETURN_FALSE; /* told otherwise */
    }
    PyObject *arrays = PyTuple_GET_ITEM(into, ARRAYS);
    PyObject *const *codes = &PyTuple_GET_ITEM(into, KNOWN);
    const Py_ssize_t known[CODES] = {
        PyDict_GET_SIZE(codes[CODES_KINDS]), PyDict_GET_SIZE(codes[CODES_NAMES]),
        PyDict_GET_SIZE(codes[CODES_GIVEN])
    };
    const Py_ssize_t keys = keys_of(codes);
    Py_buffer view;
    if (PyObject_GetBuffer(PyTuple_GET_ITEM(into, COUNTED), &view, PyBUF_ND | PyBUF_WRITABLE) < 0) {
        return NULL;
    }
    Part parts[PARTS];
    int64_t *counts = view.buf;
    int is_there = is_array(&view, 8, -1) && view.shape[0] == COUNTS && messages >= 0
        && messages <= INT32_MAX;
    for (int at = 0; is_there && at < PARTS; at++) {
        parts[at].array = PyTuple_GET_ITEM(arrays, at);
        parts[at].used = (size_t)counts[at];
        is_there = PyByteArray_Check(parts[at].array) && counts[at] >= 0
            && counts[at] <= PyByteArray_GET_SIZE(parts[at].array);
    }
    PyObject *is_joined = NULL;
    if (!is_there) {
        PyErr_SetString(PyExc_ValueError, "a batch goes to four arrays, with what is used of them");
    }
    else if (counts[COUNT_BYTES_LEFT] < JOINED_BATCH_BYTES || counts[COUNT_EVENTS] >= EVENTS_MAX
             || keys >= KEYS_MAX) {
        is_joined = Py_False;
    }
    else if (join_happened(parts, batch, counts[COUNT_NUMBER], messages, codes)) {
        int64_t bytes = (int64_t)(keys_of(codes) - keys) * KEY_BYTES;
        if (PyDict_GET_SIZE(codes[CODES_NAMES]) > known[CODES_NAMES]) {
            bytes += (int64_t)PyUnicode_GetLength(PyTuple_GET_ITEM(batch, H_NAME)) * CHAR_BYTES;
        }
        for (int at = 0; at < PARTS; at++) {
            bytes += (int64_t)parts[at].used - counts[at];
        }
        is_joined = bytes > counts[COUNT_BYTES_LEFT] ? Py_False : Py_True;
        if (is_joined == Py_True) {
            /* Only now, so that a batch counts as a whole or not at all. */
            for (int at = 0; at < PARTS; at++) {
                counts[at] = (int64_t)parts[at].used;
            }
            counts[COUNT_NUMBER] += messages;
            counts[COUNT_EVENTS] += messages;
            counts[COUNT_BYTES] += bytes;
            counts[COUNT_BYTES_LEFT] -= bytes;
        }
    }
    if (is_joined != Py_True && keys_of(codes) > keys) {
        forget_keys(codes, known);
    }
    PyBuffer_Release(&view);
    return Py_XNewRef(is_joined);
}

/* --- the module --- */

#define TWIN(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}

static PyMethodDef methods[] = {
    TWIN(read_row),
    TWIN(mark_leased),
    TWIN(read_held),
    TWIN(grant_of_one),
    TWIN(packed_runs),
#ifdef HAS_SSE42
    TWIN(pack_whole),
#endif
    TWIN(spell_token),
    TWIN(message_id),
    TWIN(spell_each),
    TWIN(unpack_rows),
    TWIN(unpack_batches),
    TWIN(spell_ids),
    TWIN(join_batch),
    TWIN(keep_live),
    {"encode_columns", encode_columns, METH_O, NULL},
    {"fold_rows", fold_rows, METH_O, NULL},
    {"pack_tokens", pack_tokens, METH_O, NULL},
    {"read_token", read_token, METH_O, NULL},
    {"ack_of_one", ack_of_one, METH_O, NULL},
    {NULL, NULL, 0, NULL}
};

static int
execute(PyObject *module)
{
    if (PY_BIG_ENDIAN || sizeof(unsigned long) != sizeof(uint64_t)) {
        PyErr_SetString(PyExc_ImportError, "made for 64 bits, the little end first");
        return -1;
    }
    prepare_hex();
#ifdef HAS_SSE42
    if (!__builtin_cpu_supports("sse4.2") && PyObject_DelAttrString(module, "pack_whole") < 0) {
        return -1;
    }
#endif
    return PyModule_AddIntConstant(module, "SOURCE_CRC", (long)SOURCE_CRC);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, execute}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "ebbmq._speedups",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__speedups(void)
{
    return PyModuleDef_Init(&module);
}
