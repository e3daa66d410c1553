/* SPDX-License-Identifier: MIT */
/* Stdin, read by several processes in turn. The holder of the lock takes the bytes that
 * were left over, reads until there is a chunk, keeps the last, unfinished line for the
 * next reader, gives the lock back and parses. So no line is read twice and none is torn;
 * chunks are numbered in the order in which they were taken.
 *
 * The lock is a robust mutex in the shared memory: the kernel hands it on if its holder
 * dies. Waiting processes try it again and again, more and more rarely: glibc loses a
 * wake-up if its waiter dies as another process takes the lock, and then nothing wakes
 * the rest. The text that a dead process had taken is lost, and the place where it
 * stopped is not known. Plain text goes on after the next line end; compressed data
 * cannot go on, and all readers fail. They also fail if it died with the first bytes,
 * which tell the kind of stdin.
 *
 * A decompressor of stdin lives in the shared memory, with an arena for all its memory,
 * because another process may decompress the next chunk. Its pointers hold as long as the
 * memory is at the same address in all processes: that is so if it was mapped before they
 * forked, and is tested. The arena holds windows of up to 8 MiB, as zstd -19 makes.
 *
 * The shared memory starts zeroed; the first process makes the mutex (state 0 to 1 to 2).
 * Without shared memory a reader has memory of its own, and stdin for itself. */
#include "data/reader.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

enum { ARENA_BYTES = 12 << 20, NEW = 0, MAKING, READY };
enum { LEAST_REST_NS = 250000, MOST_REST_NS = 32000000 };       /* between two tries */

struct shared_input {
    _Atomic uint32_t state;     /* of the lock */
    pthread_mutex_t lock;       /* guards all that follows */
    void *self;                 /* this struct's address where the decompressor was
                                   made */
    bool ended;
    bool busy;                  /* the holder is between reading and keeping the rest */
    bool skip;                  /* up to the next line end: the line before is lost or too
                                   long */
    descant_status failed;
    uint64_t chunks, lines;
    size_t carried;
    char carry[LINE_LIMIT + 1]; /* the start of a line */
    struct stream stream;
    struct reader_arena arena;
    _Alignas(64) unsigned char memory[ARENA_BYTES];
};

size_t data_shared_bytes(void)
{
    return sizeof(struct shared_input);
}

/* A maker that died within these few instructions would stop the others for ever, so
 * after a second they take over. */
static void make_once(struct shared_input *s)
{
    pthread_mutexattr_t attributes;
    uint32_t state = NEW;
    if (!atomic_compare_exchange_strong(&s->state, &state, MAKING)) {
        uint64_t until = clock_now_ns() + 1000000000;
        while (atomic_load(&s->state) != READY && clock_now_ns() < until)
            futex_wait(&s->state, MAKING, until);
        if (atomic_load(&s->state) == READY)
            return;
    }
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&s->lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
    s->self = s;
    s->arena = (struct reader_arena){.room = ARENA_BYTES, .memory = s->memory};
    stream_init(&s->stream, STDIN_FILENO, &s->arena);
    atomic_store(&s->state, READY);
    futex_wake_all(&s->state);
}

descant_status stdin_init(struct input *in, void *shared)
{
    in->own_shared = !shared;
    in->shared = shared ? shared : memory_take(sizeof *in->shared);
    if (!in->shared)
        return log_fail(in->log, DESCANT_MEMORY, "no memory to read stdin");
    make_once(in->shared);
    return DESCANT_OK;
}

void stdin_fini(struct input *in)
{
    if (in->shared && in->own_shared) {
        stream_fini(&in->shared->stream);
        pthread_mutex_destroy(&in->shared->lock);
        memory_give(in->shared);
    }
    in->shared = NULL;
}

/* As pthread_mutex_lock; EBUSY: the reading is given up. */
static int wait_lock(struct input *in)
{
    const struct data_options *o = in->options;
    struct timespec rest = {0, LEAST_REST_NS};
    int error;
    while ((error = pthread_mutex_trylock(&in->shared->lock)) == EBUSY &&
           !(o->stopped && o->stopped(o->of))) {
        nanosleep(&rest, NULL);
        if (rest.tv_nsec < MOST_REST_NS)
            rest.tv_nsec *= 2;
    }
    return error;
}

static descant_status lock(struct input *in)
{
    struct shared_input *s = in->shared;
    int error = wait_lock(in);
    if (error == EBUSY)
        return DESCANT_TIMEOUT;
    if (error == EOWNERDEAD) {
        pthread_mutex_consistent(&s->lock);
        if (s->busy && !s->stream.opened)
            s->failed = log_fail(in->log, DESCANT_CORRUPT,
                                 "stdin: a process died while it read the first bytes");
        else if (s->busy && s->stream.kind != STREAM_PLAIN)
            s->failed = log_fail(in->log, DESCANT_CORRUPT,
                                 "stdin: a process died while it decompressed");
        else if (s->busy) {
            log_say(in->log, DESCANT_WARNING,
                    "stdin: a process died while it read; some lines are lost");
            s->carried = 0;
            s->skip = true;
        }
        s->busy = false;
    } else if (error)
        return log_fail(in->log, DESCANT_SYSTEM, "stdin: no lock: %s", strerror(error));
    return DESCANT_OK;
}

static descant_status fill(struct input *in, size_t n)
{
    struct shared_input *s = in->shared;
    size_t got = 0;
    descant_status status = input_room(in, n);
    if (status != DESCANT_OK)
        return status;
    if (s->stream.opened && s->stream.kind != STREAM_PLAIN && s->self != s)
        return log_fail(in->log, DESCANT_UNSUPPORTED,
                        "stdin: compressed, and the shared memory is not at the same "
                        "address in all processes");
    s->stream.options = in->options;        /* ours, while we hold the lock */
    status = stream_read(&s->stream, in->text + in->filled, n - in->filled, &got, "stdin",
                         in->log);
    in->filled += got;
    s->ended |= in->filled < n;
    return status;
}

/* Drops the rest of a line whose start is lost. False: it has not ended yet. */
static bool skip_rest(struct input *in)
{
    struct shared_input *s = in->shared;
    const char *found = s->skip ? memchr(in->text, '\n', in->filled) : NULL;
    if (!s->skip)
        return true;
    size_t n = found ? (size_t)(found - in->text) + 1 : in->filled;
    s->lines += found != NULL;
    s->skip = !found;
    in->filled -= n;
    memmove(in->text, in->text + n, in->filled);
    return found;
}

/* Fills the window with whole lines, at least one; the rest becomes the carry. */
static descant_status take_lines(struct input *in, size_t *end)
{
    struct shared_input *s = in->shared;
    for (size_t n = in->chunk_bytes > in->filled ? in->chunk_bytes : in->filled + 1;;
         n = in->filled + 4096) {
        descant_status status = s->ended ? DESCANT_OK : fill(in, n);
        if (status != DESCANT_OK)
            return status;
        if (!skip_rest(in) && !s->ended)
            continue;
        const char *last = in->filled ? memrchr(in->text, '\n', in->filled) : NULL;
        *end = last ? (size_t)(last - in->text) + 1 : s->ended ? in->filled : 0;
        size_t rest = in->filled - *end;
        if (rest > LINE_LIMIT) {        /* a bad line as it is, long enough to be seen as
                                           one */
            *end = in->filled;
            s->skip = true;
            return DESCANT_OK;
        }
        if (*end > 0 || s->ended)
            return DESCANT_OK;
    }
}

static descant_status take_chunk(struct input *in)
{
    struct shared_input *s = in->shared;
    size_t end = 0;
    descant_status status = input_room(in, s->carried);
    if (status != DESCANT_OK)
        return status;
    /* From here until the new rest is kept, the text is in this process alone: `busy`
     * tells the next holder of the lock that the text is lost, should this process
     * die. */
    s->busy = true;
    memcpy(in->text, s->carry, s->carried);
    in->filled = s->carried;
    in->lines = s->lines;
    status = take_lines(in, &end);
    if (status != DESCANT_OK)
        return s->failed = status;
    in->lines = s->lines;
    s->lines += count_line_ends(in->text, in->text + end);
    s->carried = in->filled - end;
    memcpy(s->carry, in->text + end, s->carried);
    s->busy = false;
    in->filled = end;
    return DESCANT_OK;
}

/* *chunk is the number that the chunk gets, in the order of the lock's holders. A failure
 * to read stays in the shared memory, so that all readers fail. */
enum data_got stdin_chunk(struct input *in, struct lines *lines, uint64_t *chunk,
                          descant_status *status)
{
    struct shared_input *s = in->shared;
    in->filled = 0;
    *status = lock(in);
    if (*status != DESCANT_OK)
        return DATA_FAILED;
    *status = s->failed;
    if (s->failed == DESCANT_OK)
        *status = take_chunk(in);
    *chunk = s->chunks;
    s->chunks += in->filled > 0;
    pthread_mutex_unlock(&s->lock);
    if (*status != DESCANT_OK)
        return DATA_FAILED;
    memset(in->text + in->filled, 0, READER_PAD);
    *lines = (struct lines){in->text, in->text + in->filled, *chunk == 0};
    return in->filled > 0 ? DATA_BLOCK : DATA_END;
}
