/* SPDX-License-Identifier: MIT */
/* The ground floor: failures and the log, memory that can be made to run out,
 * clocks, chance, futexes, the machine's limits, options and JSON lines. It knows
 * nothing above it. */
#ifndef BASE_H
#define BASE_H

#include "descant.h"

#include <float.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

/* --- status.c: the function that decides that something is an error calls log_fail ---
 */

struct log {
    descant_log *fn;    /* NULL: silent */
    void *user;
    int rank;           /* -1 until known; put before each line */
};

/* Where no callback is set: lines go to standard error as the variable DESCANT_LOG says.
 * INVALID, and nothing is set, where its value is unknown. */
descant_status log_default(struct log *log);

void log_say(const struct log *log, enum descant_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

enum { LOG_LINE = 1024 };       /* bytes of a line, with its end; longer ones are cut */

/* Logs at ERROR, keeps the line for descant_last_error, returns status. log may be NULL.
 */
descant_status log_fail(const struct log *log, descant_status status, const char *format,
                        ...) __attribute__((format(printf, 3, 4)));

/* Makes a line that was logged before, perhaps by another thread, this thread's last
 * error. */
void log_recall(const char *line);

/* --- memory.c: taken while creating, never during a step or a round --- */

/* zeroed, 64-byte aligned, or NULL; the machine gives a large block's pages when they are
 * first used */
void *memory_take(size_t bytes);
/* the same, checked for overflow */
void *memory_take_array(size_t n, size_t size);
/* The machine gives the pages of a range now, where it can; what they hold stays. */
void memory_ready(const void *p, size_t bytes);
/* A range of memory_take is used no more: the machine may have its whole pages. If they
 * are used again, they hold zeros, or the same as before. */
void memory_drop(void *p, size_t bytes);
void memory_give(void *taken);                          /* NULL is allowed */
/* Room for `wanted` items of so many bytes, or twice as many as there was room for, in
 * the array whose pointer is at `array`; its first n stay. False: there is no memory, and
 * nothing is changed. */
bool memory_grow(void *array, size_t *room, size_t n, size_t wanted, size_t size);
bool memory_refuse(void);       /* before other resources are taken: true, pretend it
                                   failed */
void memory_fail_at(long k);    /* tests: the k-th next taking fails, once; 0: none */
long memory_live(void);         /* tests: blocks taken and not given back */

/* --- kept.c --- */

struct kept;

/* Prepares to keep memory beyond its job: memory of memory_take or, where `shared`, a
 * mapping that other processes see. NULL: no memory. kept_settle follows, or kept_give,
 * which changes nothing. */
struct kept *kept_add(void *memory, size_t bytes, bool shared);
/* Makes the memory the process's own. False: it is kept, but others still see it. */
bool kept_settle(struct kept *kept);
bool kept_has(const void *memory);      /* to be called before giving back memory that a
                                           caller may keep */
void kept_hold(const void *memory);     /* the memory is still read elsewhere: kept_give
                                           then does nothing */
bool kept_give(void *memory);           /* false: there is no such memory */

/* --- clock.c --- */

uint64_t clock_now_ns(void);            /* CLOCK_MONOTONIC: the same for all processes of
                                           a machine */
uint64_t clock_thread_cpu_ns(void);
void clock_sleep_until(uint64_t when_ns);

/* --- rng.c: xoshiro256**, seeded by splitmix64; the same bits everywhere --- */

struct rng {
    uint64_t s[4];
};

void rng_init(struct rng *rng, uint64_t seed);
uint64_t rng_next(struct rng *rng);
double rng_uniform(struct rng *rng);    /* [0, 1) */
double rng_normal(struct rng *rng);
/* A number for a number, with all bits changed: no two have the same (splitmix64). */
static inline uint64_t rng_mixed(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}
/* The first values of an embedding table's row, the same wherever it lies: uniform in
 * [-spread, spread), but for the first `zeros`. */
void rng_row(float *row, size_t width, size_t zeros, double spread, uint64_t seed,
             uint64_t number);

/* --- FNV-1a, a hash of bytes: begun, and gone on with --- */

#define FNV_BEGIN UINT64_C(14695981039346656037)
static inline uint64_t fnv_add(uint64_t hash, const void *bytes, size_t n)
{
    const unsigned char *at = (const unsigned char *)bytes;
    for (size_t k = 0; k < n; k++)
        hash = (hash ^ at[k]) * UINT64_C(1099511628211);
    return hash;
}

/* --- futex.c: shared between processes --- */

/* Sleeps while *word is expected, until woken or until_ns of clock_now_ns (0: for ever).
 */
void futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t until_ns);
void futex_wake_all(_Atomic uint32_t *word);

/* A lock that threads get in the order in which they asked. One that takes a mutex again
 * as soon as it has given it back keeps all others from it, for seconds. Zero is free. */
struct ticket_lock {
    _Atomic uint32_t next;      /* number of the thread that asks next; any thread */
    _Atomic uint32_t now;       /* of the one whose turn it is; futex. That one writes it,
                                   release, to give back; others acquire */
};
void ticket_take(struct ticket_lock *lock);
void ticket_give(struct ticket_lock *lock);

/* --- machine.c --- */

double machine_cores(void);             /* allowed to this process by affinity and
                                           cgroup */
uint64_t machine_memory_free(void);     /* bytes: the least of the machine's and the
                                           cgroup's */
size_t machine_page(void);
const char *machine_why(int error);     /* as strerror, with advice on a full table of
                                           descriptors */

/* Blocks signals while threads are started, so that they go to the caller's threads.
 * Signals that a thread's own instructions cause stay, for their handlers (bsp/guard.c)
 * must run in that thread. */
void signals_hold(sigset_t *before);

/* --- guess.c: the word that was probably meant by a misspelt one --- */

struct guess {
    const char *wrong;          /* set these two, the rest is zero */
    size_t length;
    const char *best;           /* of the words tried; NULL: none is near */
    size_t best_length;
    int n;
    char text[64];
};

void guess_try(struct guess *guess, const char *word, size_t length);
void guess_choices(struct guess *guess, const char *choices);       /* "mean|elastic" */
/* " (did you mean BEFOREword?)", or nothing. */
const char *guess_text(struct guess *guess, const char *before);

/* --- options.c: structs described by a table. Plans, addresses, the command line, config
 * files, the head of a log and checkpoints are read and written by such rows --- */

/* A number at the text's beginning, in any locale; *rest is the text behind it. */
bool real_read(const char *text, double *out, const char **rest);

enum option_type {
    OPTION_INT, OPTION_BYTES,
    OPTION_WHOLE = OPTION_BYTES,        /* those up to here are whole numbers, */
    OPTION_REAL, OPTION_RATE, OPTION_TIME, OPTION_LAPSE, OPTION_SECONDS,
    OPTION_NUMBERS = OPTION_SECONDS,    /* those up to here are numbers */
    OPTION_BOOL, OPTION_CHOICE, OPTION_TEXT
};

#define OPTION_ABOVE_0 DBL_MIN          /* as `low`: the number must be above 0 */

struct option {
    const char *name;           /* behind "--" on the command line */
    enum option_type type;
    size_t offset;              /* of the field: INT and BYTES int64_t; REAL, RATE (bytes
                                   a second), TIME and SECONDS double; BOOL bool; CHOICE
                                   int, the choice's number from 0; TEXT const char * */
    double low, high;           /* of numbers, both allowed; of whole ones at most 2^53 */
    const char *choices;        /* "mean|elastic"; REAL from 0: words that may stand for a
                                   number, the first is kept as -1, the next as -2 */
    const char *help;           /* text after a tab: another default than the one that is
                                   shown, and where it holds */
};

/* NULL: the table has no such name. */
const struct option *option_find(const struct option *table, size_t n, const char *name,
                                 size_t length);
/* The option that was probably meant by an unknown name. */
struct guess option_guess(const struct option *table, size_t n, const char *name,
                          size_t length);

/* Sets the option's field from text; a TEXT keeps a pointer to it. False: nothing is
 * set. */
bool option_read(const struct option *option, const char *text, void *into);
/* The same, with spaces before a number; NULL is a BOOL's true. False: message has the
 * option, its value and the values that are allowed. */
bool option_parse(const struct option *option, const char *value, void *into,
                  char *message, size_t room);

struct option_table {
    const struct option *options;
    size_t n;
};

struct option_text {            /* "key=value" in a string; neither ends with a zero */
    const char *whole, *key, *value;
    size_t key_length, value_length;
};

/* The same of one key of a string: message has its place there, too, from 1. No TEXT. */
bool option_set(struct option_table table, const struct option_text *text, void *into,
                char *message, size_t room);

/* The field as text, from which option_read has the same value; returns text. */
const char *option_write(const struct option *option, const void *from, char *text,
                        size_t room);
double option_number(const struct option *option, const void *from);    /* of no TEXT */
/* Values that are allowed: "1 to 64", "above 0 to 10, or auto", "mean|elastic"; returns
 * text. */
const char *option_range(const struct option *option, char *text, size_t room);

/* The number, from 0, of a value among those with | between them; -1: not among them. */
int option_choice(const char *choices, const char *value);
/* Writes the number in so many digits, as in the C locale. */
void real_text(double value, int digits, char *text, size_t room);

/* --- text.c: text for people that may come from elsewhere --- */

enum { TEXT_CUT = -1 };
/* The bytes of the character of UTF-8 there; 0: none; TEXT_CUT: the character goes on
 * after n bytes. */
int text_character(const char *text, size_t n);
/* The code of a character that steers a terminal, or turns the direction of the text
 * after it; 0: the character does neither. */
unsigned text_steers(const char *text, int length);
/* Writes text as one line: characters that steer, bytes that are no UTF-8 and line ends
 * come out as \x1b and the like. */
void text_line(char *to, size_t room, const char *from);

/* Opens a stream onto another one, which does the same but for line ends. NULL: no
 * memory. */
FILE *shown_open(FILE *to, bool buffered);
int shown_close(FILE *stream);          /* the errno of the first write that failed; 0:
                                           none did */
int shown_columns(FILE *stream);        /* of the stream's terminal; 0: no terminal */
void shown_clear_line(FILE *stream);    /* of that terminal */
/* Makes the regular file of this stream readable by its owner alone. False with errno. */
bool shown_for_owner(FILE *stream);
/* 0: all output has been written. Else the errno of a write that failed since errno was
 * 0; of a shown stream, of the first one that failed. */
int stream_error(FILE *stream);

/* --- hostlist.c --- */

enum hostlist { HOSTLIST_BAD, HOSTLIST_END, HOSTLIST_HOST };
/* Host k, from 0, of a list as Slurm writes it: "a,node[01-16,20]". END: there are only k
 * of them; BAD: it is no list up to there, or the name does not fit. */
enum hostlist hostlist_host(const char *list, int64_t k, char *host, size_t room);

/* --- file.c --- */

/* Follows symbolic links to the place where a file of that name is, or will be: a file
 * that is replaced by renaming is replaced there. False with errno: the links go round,
 * or the name is too long. */
bool path_follow(const char *path, char *target, size_t room);
/* Opens a new file of that name; an old one, left by a crash or put there as a link, is
 * removed. -1 with errno. */
int file_anew(const char *path);
FILE *file_anew_stream(const char *path);       /* NULL with errno */
/* The place behind the last whole line among the first `bytes`, and not before `least`;
 * `least` where there is none. -1 with errno. */
off_t file_line_end(int fd, off_t bytes, off_t least);
/* ftruncate, or, to reserve, fallocate; a limit of the process is EFBIG, and no signal.
 */
int file_resize(int fd, uint64_t bytes, bool reserve);

/* --- json.c: one object on one line, to a stream --- */

struct json {
    FILE *out;
    bool first;
};

void json_begin(struct json *json, FILE *out);
void json_text(struct json *json, const char *key, const char *value);
void json_int(struct json *json, const char *key, int64_t value);
void json_real(struct json *json, const char *key, double value);   /* not finite: null */
int json_end(struct json *json);    /* ends object and line; the errno of a write that
                                       failed */

#endif
