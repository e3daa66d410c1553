/* SPDX-License-Identifier: MIT */
/* How readers come to their bytes: chunks of any size shared in any way, compressed files and
 * stdin against plain ones, damaged and mutated files, memory that runs out. */
#include "harness/data.h"
#include "harness/folder.h"
#include "harness/processes.h"
#include "harness/suite.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* --- chunks --- */

static const size_t chunk_sizes[] = {7, 64, 1 << 10, 1 << 20};

/* Two files, plain or packed, of each size of chunks, read by one and by two readers. */
START_TEST(chunks_share_each_line_once)
{
    static const enum data_format formats[] = {DATA_CRITEO, DATA_LIBSVM, DATA_LIBFFM};
    enum data_format format = formats[_i / 3];
    int kind = _i % 3;
    size_t n;
    char *text = text_of(format, 300, &n);
    size_t half = n / 2;
    while (text[half - 1] != '\n')
        half++;
    struct data_seen whole = read_file(put_file(in_folder("whole"), text, n), format);
    ck_assert_int_eq(whole.got, DATA_END);
    ck_assert_uint_eq(whole.lines, 300);
    ck_assert_uint_ge(whole.bad, 6);
    const char *paths[] = {put_packed(kind, "1", text, half), put_file(in_folder("empty"), "", 0),
                           put_packed(kind == 1 ? 2 : kind, "2", text + half, n - half)};
    for (int i = 0; i < N(chunk_sizes); i++) {
        struct data_options o = {.paths = paths, .n_paths = 3, .format = format, .n_fields = 4,
                                 .chunk_bytes = chunk_sizes[i], .max_bad = 1,
                                 .log = &listening};
        struct data_seen all = read_chunks(&o, 0, 0);
        ck_assert_int_eq(all.got, DATA_END);
        assert_same(&whole, &all);
        free(all.at);
        for (uint64_t seed = 1; seed < (uint64_t)pick(6, 4, 2); seed++) {
            all = read_shared(&o, seed);
            assert_same(&whole, &all);
            free(all.at);
        }
    }
    free(whole.at);
    free(text);
}
END_TEST

START_TEST(line_numbers_are_the_files)
{
    size_t n;
    char *text = criteo_text(200, &n);
    for (int kind = 0; kind < 3; kind++)
        for (int i = 0; i < N(chunk_sizes); i++) {
            const char *path = put_packed(kind, "n", text, n);
            struct data_options o = {.paths = &path, .n_paths = 1, .format = DATA_CRITEO,
                                     .chunk_bytes = chunk_sizes[i], .max_bad = 1,
                                     .log = &listening};
            heard.n = 0;
            struct data_seen seen = read_chunks(&o, 0, 0);
            ck_assert_int_eq(heard.n, 5);
            for (int k = 0; k < 5; k++) {
                char want[400];
                snprintf(want, sizeof want, "%s:%d: 39 columns, criteo has 40", path,
                         40 * (k + 1));
                ck_assert_str_eq(heard.lines[k], want);
            }
            free(seen.at);
        }
    free(text);
}
END_TEST

START_TEST(epochs_follow_each_other)
{
    size_t n;
    char *text = criteo_text(100, &n);
    for (int kind = 0; kind < 3; kind++) {
        const char *paths[] = {put_packed(kind, "e1", text, n), put_packed(kind, "e2", text, n)};
        struct data_options o = {.paths = paths, .n_paths = 2, .format = DATA_CRITEO,
                                 .chunk_bytes = 1000, .max_bad = 1, .log = &listening};
        struct data_seen once = read_chunks(&o, 0, 0);
        o.epochs = 3;
        struct data_seen all = read_chunks(&o, 0, 0), shared = read_shared(&o, 5);
        ck_assert_uint_eq(all.n, 3 * once.n);
        ck_assert_uint_le(6 * ((n + 999) / 1000) - 1 - all.at[all.n - 1].chunk, 1);
        for (size_t i = 0; i < all.n; i++)
            ck_assert_uint_eq(all.at[i].print, once.at[i % once.n].print);
        assert_same(&all, &shared);
        free(once.at);
        free(all.at);
        free(shared.at);
    }
    free(text);
}
END_TEST

START_TEST(places_and_counts)
{
    size_t n;
    char *text = criteo_text(100, &n);
    for (int kind = 0; kind < 3; kind++) {
        const char *path = put_packed(kind, "p", text, n);
        struct data_options o = {.paths = &path, .n_paths = 1, .format = DATA_CRITEO,
                                 .chunk_bytes = 1000, .max_bad = 1, .epochs = 2};
        struct data *data;
        struct block block = {0};
        uint64_t chunks = 2 * ((n + 999) / 1000);
        ck_assert_int_eq(data_open(&data, &o), DESCANT_OK);
        ck_assert_uint_eq(data_chunks(data), kind ? UINT64_MAX : chunks);
        double before = 0;
        uint64_t k = 0;
        for (; data_read(data, k, &block) == DATA_BLOCK; k++) {
            double place_now = data_place(data, k);
            ck_assert(place_now >= before && place_now <= 1);
            before = place_now;
        }
        ck_assert_uint_eq(k, chunks);
        ck_assert_uint_eq(data_chunks(data), chunks);
        ck_assert_double_eq(data_place(data, k), 1);
        block_fini(&block);
        data_close(data);
    }
    free(text);
}
END_TEST

/* Longer than LINE_LIMIT, at the start, in the middle, at the end: bad, wherever chunks end. */
START_TEST(long_lines_are_bad_ones)
{
    enum { LONG = LINE_LIMIT + 100000 };
    char *text = malloc(2 * LONG + 100);
    static const size_t sizes[] = {1000, 100000, 1 << 20, 8 << 20};
    size_t n = (size_t)sprintf(text, "1 3:1\n0 4:1\n");
    memset(text + n, 'x', LONG);
    n += LONG;
    n += (size_t)sprintf(text + n, "\n1 5:1\n");
    memset(text + n, ' ', LONG);
    text[n] = '1';
    n += LONG;
    for (int kind = 0; kind < 3; kind++)
        for (int i = 0; i < N(sizes); i++) {
            const char *path = put_packed(kind, "l", text, n);
            struct data_options o = {.paths = &path, .n_paths = 1, .format = DATA_LIBSVM,
                                     .chunk_bytes = sizes[i], .max_bad = 1,
                                     .log = &listening};
            heard.n = 0;
            struct data_seen seen = read_chunks(&o, 0, 0);
            ck_assert_uint_eq(seen.n, 3);
            ck_assert_uint_eq(seen.lines, 5);
            ck_assert_uint_eq(seen.bad, 2);
            ck_assert(ends_with(heard.lines[0], "l:3: the line is longer than 1048576 bytes"));
            ck_assert(ends_with(heard.lines[1], "l:5: the line is longer than 1048576 bytes"));
            free(seen.at);
        }
    free(text);
}
END_TEST

/* --- files that are not as they should be --- */

START_TEST(files_that_cannot_be_read)
{
    static const struct {
        const char *name, *end;
        descant_status status;
    } cases[] = {{"/nowhere/x.tsv", "/nowhere/x.tsv: No such file or directory", DESCANT_SYSTEM},
                 {"/", "/: Is a directory", DESCANT_SYSTEM}};
    for (int i = 0; i < N(cases); i++) {
        struct data_seen seen = read_file(cases[i].name, DATA_CRITEO);
        ck_assert_int_eq(seen.status, cases[i].status);
        ck_assert_str_eq(heard.lines[i], cases[i].end);
    }
    const char *paths[] = {"-", "/dev/null"};
    struct data *data;
    struct data_options o = {.paths = paths, .n_paths = 2, .format = DATA_CRITEO,
                             .log = &listening};
    ck_assert_int_eq(data_open(&data, &o), DESCANT_INVALID);
    o.n_paths = 1;
    o.epochs = 2;
    ck_assert_int_eq(data_open(&data, &o), DESCANT_INVALID);
    o.n_paths = 0;
    ck_assert_int_eq(data_open(&data, &o), DESCANT_INVALID);
    for (int kind = 0; kind < 3; kind++) {
        struct data_seen seen = read_file(put_packed(kind, "z", "", 0), DATA_CRITEO);
        ck_assert_int_eq(seen.got, DATA_END);
        ck_assert_uint_eq(seen.n + seen.lines, 0);
    }
}
END_TEST

/* Its writer must not be cut off by somebody who only looks. */
START_TEST(a_named_pipe)
{
    size_t n;
    char *text = criteo_text(300, &n);
    struct data_seen whole = read_file(put_file(in_folder("w"), text, n), DATA_CRITEO);
    const char *path = in_folder("pipe"), *from = put_packed(_i, "p", text, n);
    char command[900];
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    snprintf(command, sizeof command, "cat %s >%s &", from, path);
    ck_assert_int_eq(system(command), 0);
    struct data_seen seen = read_file(path, DATA_CRITEO);
    ck_assert_int_eq(seen.got, DATA_END);
    assert_same(&whole, &seen);
    struct data *data;
    struct data_options o = {.paths = &path, .n_paths = 1, .format = DATA_CRITEO, .epochs = 2,
                             .log = &listening};
    ck_assert_int_eq(data_open(&data, &o), DESCANT_INVALID);
    ck_assert(ends_with(descant_last_error(), "pipe: it can be read only once, not for 2 epochs"));
    free(whole.at);
    free(seen.at);
    free(text);
}
END_TEST

START_TEST(a_file_that_shrinks)
{
    size_t n;
    char *text = criteo_text(500, &n);
    const char *path = put_file(in_folder("s.tsv"), text, n);
    struct data_options o = {.paths = &path, .n_paths = 1, .chunk_bytes = 5000,
                             .max_bad = 1, .log = &listening};
    struct data *data;
    struct block block = {0};
    enum data_got got;
    ck_assert_int_eq(data_open(&data, &o), DESCANT_OK);
    ck_assert_int_eq(data_read(data, 0, &block), DATA_BLOCK);
    ck_assert_int_eq(truncate(path, 20000), 0);
    for (uint64_t k = 1; (got = data_read(data, k, &block)) == DATA_BLOCK; k++)
        ;
    ck_assert_int_eq(got, DATA_FAILED);
    ck_assert_int_eq(data_status(data), DESCANT_SYSTEM);
    ck_assert(ends_with(descant_last_error(), "s.tsv: it became shorter while it was read"));
    ck_assert_int_eq(data_read(data, 100, &block), DATA_FAILED);
    block_fini(&block);
    data_close(data);
    free(text);
}
END_TEST

/* Cut at every length, and after its end: an error that names the file, or nothing at all. */
START_TEST(packed_files_that_are_cut)
{
    int kind = _i + 1;
    size_t n;
    char *text = criteo_text(8, &n);
    unsigned char *packed = malloc(2 * n + 1000);
    size_t m = pack_bytes(kind, text, n, packed, 2 * n + 1000);
    for (size_t cut = 4; cut < m; cut += cut < 64 || m - cut < 64 ? 1 : 37) {
        heard.n = 0;
        struct data_seen seen =
            read_file(put_file(in_folder("cut"), packed, cut), DATA_CRITEO);
        ck_assert_msg(seen.got == DATA_FAILED, "cut at %zu of %zu", cut, m);
        ck_assert_int_eq(seen.status, DESCANT_CORRUPT);
        ck_assert(strstr(heard.lines[heard.n - 1], kind == 1 ? "cut: the gzip data is damaged: "
                                                             : "cut: the zstd data is damaged: "));
        free(seen.at);
    }
    ck_assert(ends_with(descant_last_error(), "it ends too early"));
    memcpy(packed + m, "rest", 4);
    struct data_seen seen =
        read_file(put_file(in_folder("cut"), packed, m + 4), DATA_CRITEO);
    ck_assert_int_eq(seen.status, DESCANT_CORRUPT);
    free(seen.at);
    packed[m / 2] ^= 0x55;
    seen = read_file(put_file(in_folder("cut"), packed, m), DATA_CRITEO);
    ck_assert(kind == 2 || seen.status == DESCANT_CORRUPT);    /* zstd without a checksum */
    free(seen.at);
    free(packed);
    free(text);
}
END_TEST

START_TEST(packed_files_in_pieces)
{
    size_t n;
    char *text = criteo_text(60, &n);
    struct data_seen whole = read_file(put_file(in_folder("w"), text, n), DATA_CRITEO);
    for (int kind = 1; kind < 3; kind++) {
        unsigned char *packed = malloc(4 * n + 4000);
        size_t m = pack_bytes(kind, text, n / 3, packed, 2 * n);
        m += pack_bytes(kind, "", 0, packed + m, 2 * n);
        m += pack_bytes(kind, text + n / 3, n - n / 3, packed + m, 2 * n);
        struct data_seen seen =
            read_file(put_file(in_folder("pieces"), packed, m), DATA_CRITEO);
        ck_assert_int_eq(seen.got, DATA_END);
        assert_same(&whole, &seen);
        free(seen.at);
        memset(packed + m, 0, 512);
        if (kind == STREAM_GZIP) {
            seen = read_file(put_file(in_folder("padded"), packed, m + 512), DATA_CRITEO);
            ck_assert_int_eq(seen.got, DATA_END);
            assert_same(&whole, &seen);
            free(seen.at);
        }
        free(packed);
    }
    free(whole.at);
    free(text);
}
END_TEST

START_TEST(formats_are_guessed)
{
    static const struct {
        const char *name, *text;
        int fields;
    } cases[] = {{"g1.tsv", "", 26},        {"g2.svm.gz", "", 1},  {"g3.ffm", "", 4},
                 {"g4", GOOD_CRITEO, 26},   {"g5", "1 3:1\n", 1},  {"g6", "0 1:2:1", 4},
                 {"g7", "nothing\nwe know", 0}, {"g8", "", 0}};
    for (int i = 0; i < 2 * N(cases); i++) {
        const char *text = cases[i / 2].text;
        const char *path = put_packed(i % 2, cases[i / 2].name, text, strlen(text));
        struct data_options o = {.paths = &path, .n_paths = 1, .n_fields = 4, .log = &listening};
        struct data *data;
        descant_status status = data_open(&data, &o);
        ck_assert_int_eq(status, cases[i / 2].fields ? DESCANT_OK : DESCANT_INVALID);
        if (status == DESCANT_OK) {
            ck_assert_int_eq(data_shape(data)->n_fields, cases[i / 2].fields);
            data_close(data);
        }
    }
    ck_assert(ends_with(descant_last_error(), "g8: its format cannot be told; give --format"));
}
END_TEST

/* A byte-order mark before the first line is none of it, and hides no format. */
START_TEST(a_byte_order_mark_is_passed_over)
{
    static const enum data_format formats[] = {DATA_CRITEO, DATA_LIBSVM, DATA_LIBFFM};
    size_t n;
    char *text = text_of(formats[_i], 30, &n);
    for (size_t rows = 1; rows < 30; rows += 28) {
        char *end = text;
        for (size_t k = 0; k < rows; k++)
            end = strchr(end, '\n') + 1;
        n = (size_t)(end - text);
        char *marked = malloc(n + 3);
        memcpy(marked, "\xef\xbb\xbf", 3);
        memcpy(marked + 3, text, n);
        struct data_seen plain =
            read_file(put_file(in_folder("plain"), text, n), DATA_AUTO);
        struct data_seen got =
            read_file(put_packed(_i, "marked", marked, n + 3), DATA_AUTO);
        ck_assert_int_eq(got.got, DATA_END);
        assert_same(&plain, &got);
        free(plain.at);
        free(got.at);
        free(marked);
    }
    free(text);
}
END_TEST

/* --- stdin --- */

static struct data_seen read_stdin(void *shared, size_t chunk_bytes)
{
    const char *path = "-";
    return read_chunks(&(struct data_options){.paths = &path, .n_paths = 1, .max_bad = 1,
                                              .format = DATA_CRITEO, .log = &listening,
                                              .chunk_bytes = chunk_bytes, .shared = shared},
                       0, 0);
}

static void stdin_from(const char *path)
{
    int fd = open(path, O_RDONLY);
    ck_assert_int_ge(fd, 0);
    dup2(fd, 0);
    close(fd);
}

START_TEST(stdin_is_like_a_file)
{
    size_t n;
    char *text = criteo_text(300, &n);
    struct data_seen whole = read_file(put_file(in_folder("w"), text, n), DATA_CRITEO);
    for (int kind = 0; kind < 3; kind++)
        for (int i = 0; i < N(chunk_sizes); i++) {
            stdin_from(put_packed(kind, "stdin", text, n));
            heard.n = 0;
            struct data_seen seen = read_stdin(NULL, chunk_sizes[i]);
            ck_assert_int_eq(seen.got, DATA_END);
            assert_same(&whole, &seen);
            ck_assert_str_eq(heard.lines[1], "stdin:80: 39 columns, criteo has 40");
            free(seen.at);
        }
    free(whole.at);
    free(text);
}
END_TEST

/* A frame whose head asks for a window of that size, whatever its text needs. It was packed with
 * a small one: large ones take seconds. */
static size_t pack_frame(int window, const char *from, size_t n, unsigned char *to, size_t room)
{
    ZSTD_CCtx *c = ZSTD_createCCtx();
    ZSTD_inBuffer in = {from, n, 0};
    ZSTD_outBuffer out = {to, room, 0};
    ZSTD_CCtx_setParameter(c, ZSTD_c_compressionLevel, 1);
    ZSTD_CCtx_setParameter(c, ZSTD_c_windowLog, 20);
    ZSTD_compressStream2(c, &out, &in, ZSTD_e_flush);       /* before the length is known */
    ck_assert_uint_eq(ZSTD_compressStream2(c, &out, &in, ZSTD_e_end), 0);
    ZSTD_freeCCtx(c);
    ck_assert_int_eq(to[5], (20 - 10) << 3);          /* RFC 8878: the window's descriptor */
    to[5] = (unsigned char)((window - 10) << 3);
    return out.pos;
}

/* Frames of growing windows, up to `_i`: files may have 128 MiB, and stdin, whose memory is
 * shared, 8 MiB. What needs more is refused, and the reason is said. */
START_TEST(windows_of_zstd)
{
    enum { FIRST = 20, OF_STDIN = 23, OF_FILES = 27, PART = 12 };
    size_t n, m = 0;
    char *text = criteo_text(300, &n), want[64];
    unsigned char *packed = malloc(2 * n + 10000);
    for (int k = FIRST; k <= _i; k++) {
        size_t at = n / PART * (size_t)(k - FIRST), end = k < _i ? at + n / PART : n;
        m += pack_frame(k, text + at, end - at, packed + m, 2 * n + 10000 - m);
    }
    const char *path = put_file(in_folder("frames"), packed, m);
    struct data_seen whole = read_file(put_file(in_folder("w"), text, n), DATA_CRITEO);
    stdin_from(path);
    for (int from_stdin = 0; from_stdin < 2; from_stdin++) {
        int most = from_stdin ? OF_STDIN : OF_FILES;
        struct data_seen seen = from_stdin ? read_stdin(NULL, 4096) : read_file(path, DATA_CRITEO);
        if (_i <= most)
            assert_same(&whole, &seen);
        ck_assert_int_eq(seen.status, _i <= most ? DESCANT_OK : DESCANT_UNSUPPORTED);
        snprintf(want, sizeof want, "needs a window of more than %d MiB", 1 << most >> 20);
        ck_assert(_i <= most || strstr(descant_last_error(), want));
        free(seen.at);
    }
    free(whole.at);
    free(packed);
    free(text);
}
END_TEST

static int by_print(const void *a, const void *b)
{
    return by_chunk((const uint64_t *)a + 1, (const uint64_t *)b + 1);
}

/* Three processes take turns; together they have each example once. */
START_TEST(stdin_is_shared)
{
    enum { READERS = 3, ROWS = 2000 };
    struct {
        _Atomic size_t n;
        uint64_t at[2 * ROWS][2];
    } *all = share_memory(sizeof *all);
    size_t n;
    char *text = criteo_text(ROWS, &n);
    struct data_seen whole = read_file(put_file(in_folder("w"), text, n), DATA_CRITEO);
    void *shared = share_memory(data_shared_bytes());
    stdin_from(put_packed(_i, "stdin", text, n));
    for (int i = 0; i < READERS; i++)
        if (fork() == 0) {
            struct data_seen seen = read_stdin(shared, 4096);
            for (size_t k = 0; k < seen.n; k++)
                memcpy(all->at[atomic_fetch_add(&all->n, 1)], &seen.at[k], 16);
            _exit(seen.got == DATA_END ? 0 : 1);
        }
    for (int i = 0; i < READERS; i++) {
        int status;
        wait(&status);
        ck_assert_int_eq(status, 0);
    }
    ck_assert_uint_eq(all->n, whole.n);
    qsort(all->at, all->n, 16, by_chunk);
    for (size_t i = 1; i < all->n; i++)
        ck_assert_uint_le(all->at[i][0] - all->at[i - 1][0], 1);
    qsort(all->at, all->n, 16, by_print);
    qsort(whole.at, whole.n, 16, by_print);
    for (size_t i = 0; i < whole.n; i++)
        ck_assert_uint_eq(all->at[i][1], whole.at[i].print);
    free(whole.at);
    free(text);
}
END_TEST

/* 'S': it waits. */
/* A reader dies while it waits for bytes, with the lock and half a line: the next one goes on
 * after that line. Compressed data cannot go on. */
START_TEST(stdin_survives_its_reader)
{
    int ends[2], status;
    size_t n, half, left = 1;
    char *text = criteo_text(20, &n);
    unsigned char packed[20000];
    void *shared = share_memory(data_shared_bytes());
    n = pack_bytes(_i, text, n, packed, sizeof packed);
    half = n / 2;
    ck_assert_int_eq(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[0], 0);
        close(ends[1]);
        read_stdin(shared, 1 << 20);
        _exit(0);
    }
    ck_assert_int_eq(write(ends[1], packed, half), (ssize_t)half);
    while (left > 0)
        ck_assert_int_eq(ioctl(ends[0], FIONREAD, &left), 0);
    wait_asleep(child);
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    ck_assert_int_eq(write(ends[1], packed + half, n - half), (ssize_t)(n - half));
    close(ends[1]);
    dup2(ends[0], 0);
    struct data_seen seen = read_stdin(shared, 1 << 20);
    if (_i == 0) {
        struct data_seen whole =
            read_file(put_file(in_folder("w"), text, n), DATA_CRITEO);
        ck_assert_int_eq(seen.got, DATA_END);
        ck_assert_str_eq(heard.lines[0],
                         "stdin: a process died while it read; some lines are lost");
        ck_assert(seen.n >= 5 && seen.n < 15);
        ck_assert_uint_eq(seen.bad, 0);
        for (size_t i = 1; i <= seen.n; i++)
            ck_assert_uint_eq(seen.at[seen.n - i].print, whole.at[whole.n - i].print);
        free(whole.at);
    } else {
        ck_assert_int_eq(seen.status, DESCANT_CORRUPT);
        ck_assert_str_eq(heard.lines[0], "stdin: a process died while it decompressed");
    }
    free(seen.at);
    free(text);
}
END_TEST

static bool at_once(void *of)
{
    (void)of;
    return true;
}

/* Two readers, one with the lock and one that waits for it: pids[0] and pids[1]. The lock's word is the
 * shared memory's third; its highest bit says that somebody is to be woken. */
static _Atomic uint32_t *begin_waiting(pid_t *pids, const int *ends, bool (*stopped)(void *of))
{
    void *shared = share_memory(data_shared_bytes());
    _Atomic uint32_t *word = (_Atomic uint32_t *)shared + 2;
    const char *path = "-";
    for (int k = 0; k < 2; k++) {
        pids[k] = fork();
        if (pids[k] == 0) {
            struct data_options o = {.paths = &path, .n_paths = 1, .max_bad = 1, .shared = shared,
                                     .format = DATA_CRITEO, .stopped = k ? stopped : NULL};
            dup2(ends[0], 0);
            close(ends[1]);
            struct data_seen seen = read_chunks(&o, 0, 0);
            _exit(seen.got == DATA_END ? 0 : seen.status == DESCANT_TIMEOUT ? 2 : 1);
        }
        for (int waits = 0; waits < 20;
             waits = (*word & ~(1u << 31)) == (uint32_t)pids[0] && state_of(pids[k]) == 'S'
                         ? waits + 1 : 0)
            if (k && stopped && state_of(pids[k]) == 'Z')
                return word;
            else
                usleep(1000);
    }
    return word;
}

/* A waiter that nobody wakes looks again by itself, and one that is stopped gives it up. */
START_TEST(a_waiter_for_stdin_looks_again)
{
    int ends[2], status;
    pid_t pids[2];
    size_t n;
    char *text = criteo_text(20, &n);
    ck_assert_int_eq(pipe(ends), 0);
    _Atomic uint32_t *word = begin_waiting(pids, ends, _i ? at_once : NULL);
    atomic_fetch_and(word, ~(1u << 31));
    if (_i) {
        ck_assert_int_eq(waitpid(pids[1], &status, 0), pids[1]);
        ck_assert_int_eq(WEXITSTATUS(status), 2);
    }
    ck_assert_int_eq(write(ends[1], text, n), (ssize_t)n);
    close(ends[1]);
    for (int k = 0; k < 2 - _i; k++) {
        ck_assert_int_eq(waitpid(pids[k], &status, 0), pids[k]);
        ck_assert_int_eq(status, 0);
    }
    free(text);
}
END_TEST

static volatile sig_atomic_t signalled;

static void note_signal(int signal)
{
    signalled = signal;
}

static bool is_signalled(void *of)
{
    (void)of;
    return signalled;
}

/* A signal that ends a wait for bytes brings none, though its handler restarts calls. */
START_TEST(a_signal_ends_a_read_of_stdin)
{
    struct sigaction action = {.sa_handler = note_signal, .sa_flags = SA_RESTART};
    int ends[2], status;
    ck_assert_int_eq(pipe(ends), 0);
    sigaction(SIGTERM, &action, NULL);
    pid_t reader = fork();
    if (reader == 0) {
        const char *path = "-";
        struct data_options o = {.paths = &path, .n_paths = 1, .format = DATA_CRITEO,
                                 .shared = _i ? share_memory(data_shared_bytes()) : NULL,
                                 .stopped = is_signalled};
        dup2(ends[0], 0);
        _exit(read_chunks(&o, 0, 0).status == DESCANT_TIMEOUT ? 0 : 1);
    }
    wait_asleep(reader);
    kill(reader, SIGTERM);
    ck_assert_int_eq(waitpid(reader, &status, 0), reader);
    ck_assert_int_eq(status, 0);
    close(ends[0]);
    close(ends[1]);
}
END_TEST

/* --- anything at all --- */

/* Writes over some bytes, takes some out, or puts some in; returns where the first change is. */
static size_t mutate(unsigned char *bytes, size_t *n, size_t room, struct rng *rng)
{
    static const char likely[] = "\t\n\r :-+.e019\0\xff";
    size_t first = *n;
    for (uint64_t changes = 1 + rng_next(rng) % 4; changes > 0; changes--) {
        size_t at = rng_next(rng) % (*n + 1), m = 1 + rng_next(rng) % 9;
        uint64_t how = rng_next(rng) % 3;
        first = at < first ? at : first;
        if (how == 0 && at + m <= *n) {
            memmove(bytes + at, bytes + at + m, *n - at - m);
            *n -= m;
        } else if (how == 1 && *n + m <= room) {
            memmove(bytes + at + m, bytes + at, *n - at);
            *n += m;
        }
        for (size_t i = at; how && i < at + m && i < *n; i++)
            bytes[i] = (unsigned char)(rng_next(rng) % 2 ? likely[rng_next(rng) % sizeof likely]
                                                         : (char)rng_next(rng));
    }
    return first;
}

static size_t lines_before(const unsigned char *bytes, size_t n)
{
    size_t lines = 0;
    for (size_t i = 0; i < n; i++)
        lines += bytes[i] == '\n';
    return lines;
}

/* Mutated files are read to an end, without harm; lines before the first change are as ever. */
START_TEST(mutated_input)
{
    enum { ROOM = 1 << 16 };
    uint64_t rounds = (uint64_t)pick(2500, 1500, 250);
    static const enum data_format formats[] = {DATA_CRITEO, DATA_LIBSVM, DATA_LIBFFM};
    enum data_format format = formats[_i / 3];
    int kind = _i % 3;
    size_t n, m;
    char *text = text_of(format, 30, &n);
    unsigned char *bytes = malloc(ROOM);
    int fd = memfd_create("mutated", 0);
    char path[64];
    const char *name = path;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct data_seen whole = read_file(put_file(in_folder("w"), text, n), format);
    struct rng rng;
    for (uint64_t seed = 0; seed < rounds; seed++) {
        rng_init(&rng, seed);
        m = pack_bytes(kind, text, n, bytes, ROOM);
        size_t first = mutate(bytes, &m, ROOM, &rng);
        ck_assert_int_eq(ftruncate(fd, 0), 0);
        ck_assert_int_eq(pwrite(fd, bytes, m, 0), (ssize_t)m);
        struct data_options o = {.paths = &name, .n_paths = 1, .format = format, .n_fields = 4,
                                 .hash = seed % 2, .chunk_bytes = 1 + rng_next(&rng) % 4000,
                                 .max_bad = 1};
        struct data_seen seen = read_chunks(&o, 0, 0);
        ck_assert_msg(kind || seen.got == DATA_END, "seed %d", (int)seed);
        size_t same = kind ? 0 : lines_before(bytes, first);
        ck_assert_msg(seen.n + seen.bad >= same, "seed %d", (int)seed);
        for (size_t i = 0; i < same && i < 30 && (format == DATA_CRITEO || !o.hash); i++)
            ck_assert_msg(seen.at[i].print == whole.at[i].print, "seed %d", (int)seed);
        free(seen.at);
    }
    close(fd);
    free(whole.at);
    free(bytes);
    free(text);
}
END_TEST

/* --- memory that runs out --- */

static const char *input_of(int format, int kind, char *text, size_t n)
{
    struct data_options o = {.n_paths = 1, .format = DATA_CRITEO, .max_bad = 1};
    if (format == DATA_IDX)
        return put_images("m", 0, IMAGES, kind);
    const char *path = put_packed(format == DATA_CACHE ? 0 : kind, "m", text, n);
    o.paths = &path;
    return format == DATA_CACHE ? make_cache("m.cache", &o, 10) : path;
}

START_TEST(memory_runs_out)
{
    enum data_format format = (enum data_format)(DATA_CRITEO + _i / 3);
    size_t n;
    char *text = text_of(format == DATA_CACHE || format == DATA_IDX ? DATA_CRITEO : format, 400,
                         &n);
    const char *path = input_of((int)format, _i % 3, text, n);
    long live = memory_live();
    for (long k = 1;; k++) {
        ck_assert_int_lt((int)k, 300);
        memory_fail_at(k);
        struct data_seen seen = read_file(path, format);
        bool spared = !memory_refuse();
        memory_fail_at(0);
        free(seen.at);
        ck_assert_int_eq(memory_live(), live);
        if (seen.got == DATA_END)
            break;
        ck_assert(spared || seen.got == DATA_FAILED);
        ck_assert_int_eq(seen.status, DESCANT_MEMORY);
    }
    free(text);
}
END_TEST

int main(void)
{
    TCase *tests = new_case("input", 300);
    tcase_add_loop_test(tests, chunks_share_each_line_once, 0, 9);
    tcase_add_test(tests, line_numbers_are_the_files);
    tcase_add_test(tests, epochs_follow_each_other);
    tcase_add_test(tests, places_and_counts);
    tcase_add_test(tests, long_lines_are_bad_ones);
    tcase_add_test(tests, files_that_cannot_be_read);
    tcase_add_loop_test(tests, a_named_pipe, 0, 3);
    tcase_add_test(tests, a_file_that_shrinks);
    tcase_add_loop_test(tests, packed_files_that_are_cut, 0, 2);
    tcase_add_test(tests, packed_files_in_pieces);
    tcase_add_test(tests, formats_are_guessed);
    tcase_add_loop_test(tests, a_byte_order_mark_is_passed_over, 0, 3);
    tcase_add_test(tests, stdin_is_like_a_file);
    tcase_add_loop_test(tests, windows_of_zstd, 23, 25);
    tcase_add_loop_test(tests, windows_of_zstd, 27, 29);
    tcase_add_loop_test(tests, stdin_is_shared, 0, 3);
    tcase_add_loop_test(tests, stdin_survives_its_reader, 0, 3);
    tcase_add_loop_test(tests, mutated_input, 0, 9);
    tcase_add_loop_test(tests, memory_runs_out, 0, 15);
    TCase *waits = new_case("waits", 30);
    tcase_add_loop_test(waits, a_waiter_for_stdin_looks_again, 0, 2);
    tcase_add_loop_test(waits, a_signal_ends_a_read_of_stdin, 0, 2);
    return run_cases(waits, tests, NULL);
}
