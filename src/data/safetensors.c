/* SPDX-License-Identifier: MIT */
/* Safetensors files, on little-endian machines.
 *
 * Layout: the header's length (8 bytes), the header (one JSON object, then spaces), the
 * data. Each tensor is an entry "name": {"dtype", "shape", "data_offsets": [from, to]},
 * counted from the start of the data; "__metadata__" holds texts. The spaces make the
 * data start on a cache line, and the tensors are laid out by the size of their elements,
 * the largest first: so each is aligned to its elements without gaps, which the format
 * forbids. Python's package does the same.
 *
 * Writing. Readers of path see the old file or the new one, never a part:
 *   1. path.tmp is written and synced; until then nothing else was touched.
 *   2. The old file gets a second name, previous, by a link: path is there all the time.
 *   3. path.tmp is renamed to path, and the folder is synced.
 * Where links are not to be had (FAT, some network disks), 2 is a rename, undone if 3
 * fails. Two writers of one path that may run at once need temporary files of their own:
 * then the last rename counts.
 *
 * Reading maps the file; the tensors point into the map. Before that every number in the
 * header is tested: a file that passes has each byte of its data in exactly one tensor. A
 * file that is cut short while it is mapped ends the process with SIGBUS; writing as
 * above never cuts a file. Left out: other types, more than two dimensions, names of 64
 * bytes or more. */
#include "data/safetensors.h"
#include "base/jansson.h"
#include "data/kind.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little-endian");

/* Sizes in bytes: of the header's length, of a cache line, of the longest header, of one
 * call of write, of a piece that is copied before it is written. */
enum { LENGTH_BYTES = 8, ALIGNMENT = 64, MOST_HEADER = 100 << 20, MOST_WRITE = 1 << 30,
       PIECE_BYTES = 32 << 10 };
static const char metadata[] = "__metadata__";

static const struct type {
    const char *name;
    size_t size;
} types[] = {
    [SAFETENSORS_F32] = {"F32", 4},
    [SAFETENSORS_U8] = {"U8", 1},
    [SAFETENSORS_U64] = {"U64", 8},
};
enum { N_TYPES = sizeof types / sizeof *types };

/* The order of types in a written file: by the size of their elements. A new type has a
 * row here and one above. */
static const enum safetensors_type layout[] = {SAFETENSORS_U64, SAFETENSORS_F32,
                                               SAFETENSORS_U8};

/* Bytes of its shape; false on overflow. */
static bool shape_bytes(const struct safetensor *t, size_t *bytes)
{
    *bytes = types[t->type].size;
    for (int i = 0; i < t->n_dims; i++)
        if (__builtin_mul_overflow(*bytes, t->dims[i], bytes))
            return false;
    return *bytes <= PTRDIFF_MAX;
}

/* --- writing --- */

/* A file's head. Its tensors lie type by type, and within it as given. */
struct head {
    const struct safetensor *tensors;
    size_t n;
    const struct safetensors_text *texts;
    size_t n_texts;
    bool as_given;              /* they lie as given, whatever their types are */
    size_t least;               /* bytes that it takes at least */
};

static bool put_tensor(json_t *header, const struct safetensor *t, size_t *at)
{
    json_t *shape = json_array();
    for (int i = 0; shape && i < t->n_dims; i++)
        json_array_append_new(shape, json_integer((json_int_t)t->dims[i]));
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", types[t->type].name,
                              "shape", shape, "data_offsets", (json_int_t)*at,
                              (json_int_t)(*at + t->bytes));
    *at += t->bytes;
    return json_object_set_new(header, t->name, entry) == 0;
}

/* Adds the entries in the order in which the data is written. */
static bool put_tensors(json_t *header, const struct head *head)
{
    size_t at = 0, turns = head->as_given ? 1 : N_TYPES;
    for (size_t type = 0; type < turns; type++)
        for (size_t k = 0; k < head->n; k++)
            if ((head->as_given || head->tensors[k].type == layout[type]) &&
                !put_tensor(header, &head->tensors[k], &at))
                return false;
    return true;
}

/* The length, the JSON and the spaces, to be given to free; NULL without memory, or if a
 * text is not UTF-8. */
static char *make_header(const struct head *head, size_t *bytes)
{
    json_t *header = json_object(), *told = json_object();
    char *text = NULL, *made = NULL;
    bool good = header && told;
    for (size_t i = 0; i < head->n_texts && good; i++)
        good = json_object_set_new(told, head->texts[i].key,
                                   json_string(head->texts[i].value)) == 0;
    if (good && (head->n_texts == 0 || json_object_set(header, metadata, told) == 0) &&
        put_tensors(header, head))
        text = json_dumps(header, JSON_COMPACT);
    json_decref(told);
    json_decref(header);
    size_t length = text ? strlen(text) : 0;
    size_t all = (LENGTH_BYTES + length + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    all = all < head->least ? head->least : all;
    if (text && !memory_refuse() && (made = malloc(all)) != NULL) {
        uint64_t rest = all - LENGTH_BYTES;
        memset(made, ' ', all);
        memcpy(made, &rest, sizeof rest);
        memcpy(made + LENGTH_BYTES, text, length);
        *bytes = all;
    }
    free(text);
    return made;
}

static descant_status check_tensors(const char *path, const struct safetensor *tensors,
                                    size_t n, const struct log *log)
{
    for (size_t i = 0; i < n; i++) {
        const struct safetensor *t = &tensors[i];
        size_t bytes;
        if ((size_t)t->type >= N_TYPES || t->n_dims < 0 || t->n_dims > 2 ||
            !shape_bytes(t, &bytes) || bytes != t->bytes ||
            (!t->data && !t->source && bytes))
            return log_fail(
                log, DESCANT_INVALID,
                "%s: tensor %s: type, shape, data and %zu bytes do not go together", path,
                t->name, t->bytes);
        bool twice = strcmp(t->name, metadata) == 0;
        for (size_t k = 0; k < i && !twice; k++)
            twice = strcmp(t->name, tensors[k].name) == 0;
        if (twice)
            return log_fail(log, DESCANT_INVALID, "%s: tensor %s: the name is taken",
                            path, t->name);
    }
    return DESCANT_OK;
}

static bool write_all(int fd, const void *data, size_t bytes)
{
    const char *at = data;
    while (bytes > 0) {
        ssize_t wrote = write(fd, at, bytes < MOST_WRITE ? bytes : MOST_WRITE);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0) {
            errno = wrote < 0 ? errno : ENOSPC;     /* 0 bytes come without errno */
            return false;
        }
        at += wrote;
        bytes -= (size_t)wrote;
    }
    return true;
}

static bool is_finite(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

/* Writes by way of a copy, which no worker changes between the test and the writing.
 * EDOM: not finite. */
static bool write_pieces(int fd, const struct safetensor *t)
{
    union {
        float f32[PIECE_BYTES / sizeof(float)];
        uint64_t u64[PIECE_BYTES / sizeof(uint64_t)];
    } piece;

    for (size_t at = 0, n; at < t->bytes; at += n) {
        n = t->bytes - at < sizeof piece ? t->bytes - at : sizeof piece;
        if (t->data)
            memcpy(&piece, (const char *)t->data + at, n);
        else if (!t->source(t->of, &piece, n))
            return false;
        if (t->finite && t->type == SAFETENSORS_F32 &&
            !is_finite(piece.f32, n / sizeof *piece.f32)) {
            errno = EDOM;
            return false;
        }
        if (!write_all(fd, &piece, n))
            return false;
    }
    return true;
}

static bool write_tensor(int fd, const struct safetensor *t)
{
    bool as_it_is = t->data && !(t->finite && t->type == SAFETENSORS_F32);

    return as_it_is ? write_all(fd, t->data, t->bytes) : write_pieces(fd, t);
}

/* Step 1. False with errno; then the file is gone. A file left by a crash is replaced. */
static bool write_file(const char *path, const char *header, size_t header_bytes,
                       const struct safetensor *tensors, size_t n)
{
    int fd = file_anew(path);
    if (fd < 0)
        return false;
    bool good = write_all(fd, header, header_bytes);
    for (size_t type = 0; type < N_TYPES; type++)
        for (size_t k = 0; k < n && good; k++)
            if (tensors[k].type == layout[type])
                good = write_tensor(fd, &tensors[k]);
    good = good && fsync(fd) == 0;
    int error = errno;
    if (close(fd) != 0 && good) {
        good = false;
        error = errno;
    }
    if (!good)
        unlink(path);
    errno = error;
    return good;
}

/* Step 2. *moved: path itself was renamed, for want of links. */
static bool keep_previous(const char *path, const char *previous, bool *moved)
{
    char name[PATH_MAX];
    *moved = false;
    if (snprintf(name, sizeof name, "%s.tmp", previous) >= (int)sizeof name) {
        errno = ENAMETOOLONG;
        return false;
    }
    unlink(name);
    if (link(path, name) == 0) {
        bool good = rename(name, previous) == 0;
        int error = errno;
        unlink(name);    /* it stays if both were names of one file already */
        errno = error;
        return good;
    }
    if (access(path, F_OK) != 0)
        return true;     /* there is no old file */
    *moved = rename(path, previous) == 0;
    return *moved;
}

/* Steps 2 and 3. */
static bool put_in_place(const char *path, const char *temporary, const char *previous)
{
    bool moved = false;
    bool good = (!previous || keep_previous(path, previous, &moved)) &&
        rename(temporary, path) == 0;
    int error = errno;
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path + 1) : 1,
             slash ? path : ".");
    int fd = good ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        fsync(fd);       /* some file systems cannot: the rename is done anyhow */
        close(fd);
    }
    if (!good)
        unlink(temporary);
    if (!good && moved)
        rename(previous, path);
    errno = error;
    return good;
}

static bool temporary_of(const char *path, char *name, size_t room)
{
    return (size_t)snprintf(name, room, "%s.tmp", path) < room;
}

void safetensors_tidy(const char *path)
{
    char temporary[PATH_MAX];
    if (temporary_of(path, temporary, sizeof temporary))
        unlink(temporary);
}

descant_status safetensors_write_by(const char *temporary, const char *path,
                                    const char *previous,
                                    const struct safetensor *tensors, size_t n,
                                    const struct safetensors_text *texts, size_t n_texts,
                                    const struct log *log)
{
    char usual[PATH_MAX];
    size_t header_bytes = 0;
    descant_status status = check_tensors(path, tensors, n, log);
    if (status != DESCANT_OK)
        return status;
    if (!temporary_of(path, usual, sizeof usual))
        return log_fail(log, DESCANT_SYSTEM, "%s: the name is too long", path);
    if (!temporary)
        temporary = usual;
    const struct head head = {tensors, n, texts, n_texts, false, 0};
    char *header = make_header(&head, &header_bytes);
    if (!header)
        return log_fail(
            log, DESCANT_MEMORY,
            "%s: no memory for its header, or a name or text in it is not UTF-8", path);
    if (header_bytes > MOST_HEADER)
        status =
            log_fail(log, DESCANT_INVALID, "%s: its header has %zu bytes, allowed are %d",
                     path, header_bytes, (int)MOST_HEADER);
    else if (!write_file(temporary, header, header_bytes, tensors, n))
        status = log_fail(log, errno == EDOM ? DESCANT_INVALID : DESCANT_SYSTEM,
                          "%s: cannot write: %s", temporary,
                          errno == EDOM ? "a parameter is NaN or Inf" : strerror(errno));
    else if (!put_in_place(path, temporary, previous))
        status = log_fail(log, DESCANT_SYSTEM, "%s: cannot be put in place%s%s: %s", path,
                          previous ? ", or the old file as " : "",
                          previous ? previous : "", strerror(errno));
    free(header);
    return status;
}

/* --- sizes that are known late --- */

struct safetensors_late {
    int fd;
    int error;                  /* of the first write that has failed */
    size_t head_bytes;
    char path[PATH_MAX], temporary[PATH_MAX];
};

/* A file that is given up leaves nothing. */
static descant_status late_failed(struct safetensors_late *late, const struct log *log)
{
    int error = late->error ? late->error : errno;
    if (late->fd >= 0)
        close(late->fd);
    unlink(late->temporary);
    descant_status status =
        log_fail(log, DESCANT_SYSTEM, "%s: cannot write: %s", late->temporary,
                 strerror(error));
    memory_give(late);
    return status;
}

descant_status safetensors_begin(struct safetensors_late **out, const char *path,
                                 const struct safetensor *most, size_t n,
                                 const struct safetensors_text *texts, size_t n_texts,
                                 const struct log *log)
{
    const struct head head = {most, n, texts, n_texts, true, 0};
    struct safetensors_late *late = memory_take(sizeof *late);
    char *header = late ? make_header(&head, &late->head_bytes) : NULL;

    if (!header || !temporary_of(path, late->temporary, sizeof late->temporary)) {
        bool fits = !header;
        free(header);
        memory_give(late);
        return fits ? log_fail(log, DESCANT_MEMORY, "%s: no memory to write it", path)
                    : log_fail(log, DESCANT_SYSTEM, "%s: the name is too long", path);
    }
    strcpy(late->path, path);
    late->fd = file_anew(late->temporary);
    bool good = late->fd >= 0 && write_all(late->fd, header, late->head_bytes);
    free(header);
    if (!good)
        return late_failed(late, log);
    *out = late;
    return DESCANT_OK;
}

bool safetensors_add(struct safetensors_late *late, const void *data, size_t bytes)
{
    if (late->error == 0 && !write_all(late->fd, data, bytes))
        late->error = errno;
    return late->error == 0;
}

descant_status safetensors_end(struct safetensors_late *late,
                               const struct safetensor *tensors, size_t n,
                               const struct safetensors_text *texts, size_t n_texts,
                               const struct log *log)
{
    const struct head head = {tensors, n, texts, n_texts, true, late->head_bytes};
    size_t bytes = 0;
    char *header = make_header(&head, &bytes);

    if (!header || bytes != late->head_bytes)
        late->error = late->error ? late->error : ENOMEM;
    bool good = late->error == 0 && lseek(late->fd, 0, SEEK_SET) == 0 &&
                write_all(late->fd, header, bytes) && fsync(late->fd) == 0;
    free(header);
    if (!good)
        return late_failed(late, log);
    int fd = late->fd;
    late->fd = -1;
    if (close(fd) != 0 || !put_in_place(late->path, late->temporary, NULL))
        return late_failed(late, log);
    memory_give(late);
    return DESCANT_OK;
}

void safetensors_give_up(struct safetensors_late *late)
{
    close(late->fd);
    unlink(late->temporary);
    memory_give(late);
}

/* --- reading --- */

struct safetensors {
    unsigned char *map;
    size_t bytes;               /* of the file */
    json_t *header;             /* owns the texts */
    struct safetensor *tensors; /* (n), in the header's order */
    size_t n;
};

/* A file being read, and the first reason to refuse it, which is logged once with the
 * path. */
struct reader {
    struct safetensors *file;
    const unsigned char *data;
    size_t data_bytes;
    char why[320];
};

static bool wrong(struct reader *r, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static bool wrong(struct reader *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(r->why, sizeof r->why, format, args);
    va_end(args);
    return false;
}

static bool read_size(const json_t *value, size_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (size_t)json_integer_value(value);
    return true;
}

/* Reads an entry of the header. Each number is tested before another one is computed from
 * it; check_cover compares the tensors with each other. */
static bool read_tensor(struct reader *r, struct safetensor *t, const char *name,
                        const json_t *value)
{
    const json_t *shape = json_object_get(value, "shape");
    const json_t *offsets = json_object_get(value, "data_offsets");
    const char *type = json_string_value(json_object_get(value, "dtype"));
    size_t from, to, bytes, known = 0;
    if (strlen(name) >= sizeof t->name)
        return wrong(r, "tensor %.60s...: the name is longer than %zu bytes", name,
                     sizeof t->name - 1);
    strcpy(t->name, name);
    if (json_object_size(value) != 3)
        return wrong(r, "tensor %s: not an object of dtype, shape and data_offsets",
                     name);
    while (type && known < N_TYPES && strcmp(type, types[known].name) != 0)
        known++;
    if (!type || known == N_TYPES)
        return wrong(r, "tensor %s: type %s is not among F32, U8, U64", name,
                     type ? type : "(none)");
    t->type = (enum safetensors_type)known;
    if (!json_is_array(shape) || json_array_size(shape) > 2)
        return wrong(r, "tensor %s: its shape is not a list of at most 2 sizes", name);
    t->n_dims = (int)json_array_size(shape);
    for (int i = 0; i < t->n_dims; i++)
        if (!read_size(json_array_get(shape, (size_t)i), &t->dims[i]))
            return wrong(r, "tensor %s: its shape is not of whole numbers", name);
    if (json_array_size(offsets) != 2 || !read_size(json_array_get(offsets, 0), &from) ||
        !read_size(json_array_get(offsets, 1), &to))
        return wrong(r, "tensor %s: its offsets are not two whole numbers", name);
    if (from > to || to > r->data_bytes)
        return wrong(r, "tensor %s: at bytes %zu to %zu, but there are %zu (torn?)", name,
                     from, to, r->data_bytes);
    if (!shape_bytes(t, &bytes) || bytes != to - from)
        return wrong(r, "tensor %s: its shape does not make %zu bytes", name, to - from);
    t->data = r->data + from;
    t->bytes = bytes;
    if ((uintptr_t)t->data % types[t->type].size != 0)
        return wrong(r, "tensor %s: not aligned to its elements", name);
    return true;
}

static bool read_entries(struct reader *r)
{
    const char *key;
    json_t *value, *text, *texts = json_object_get(r->file->header, metadata);
    if (texts && !json_is_object(texts))
        return wrong(r, "%s is not an object", metadata);
    json_object_foreach(texts, key, text)
        if (!json_is_string(text))
            return wrong(r, "%s: %.60s is not a text", metadata, key);
    json_object_foreach(r->file->header, key, value) {
        if (strcmp(key, metadata) == 0)
            continue;
        if (!read_tensor(r, &r->file->tensors[r->file->n], key, value))
            return false;
        r->file->n++;
    }
    return true;
}

/* Empty tensors come before the one that begins at the same place, else check_cover would
 * take that for an overlap. */
static int by_place(const void *a, const void *b)
{
    const struct safetensor *const *x = a, *const *y = b;
    const unsigned char *p = (*x)->data, *q = (*y)->data;
    if (p != q)
        return p < q ? -1 : 1;
    return ((*x)->bytes > (*y)->bytes) - ((*x)->bytes < (*y)->bytes);
}

/* Each byte of the data is in one tensor, and in one only. */
static bool check_cover(struct reader *r, const struct safetensor **sorted)
{
    const unsigned char *end = r->data;
    for (size_t i = 0; i < r->file->n; i++)
        sorted[i] = &r->file->tensors[i];
    qsort(sorted, r->file->n, sizeof *sorted, by_place);
    for (size_t i = 0; i < r->file->n; i++) {
        const unsigned char *begin = sorted[i]->data;
        if (begin != end)
            return wrong(r, "tensor %s: %s", sorted[i]->name,
                         begin < end ? "it overlaps another"
                                     : "there is a gap before it");
        end = begin + sorted[i]->bytes;
    }
    if (end != r->data + r->data_bytes)
        return wrong(r, "%zu bytes after the last tensor",
                     (size_t)(r->data + r->data_bytes - end));
    return true;
}

static bool read_header(struct reader *r)
{
    struct safetensors *file = r->file;
    json_error_t error;
    uint64_t length;
    if (file->bytes < LENGTH_BYTES)
        return wrong(r, "%zu bytes are not a safetensors file", file->bytes);
    memcpy(&length, file->map, sizeof length);
    if (length > MOST_HEADER || length > file->bytes - LENGTH_BYTES)
        return wrong(r,
                     "a header of %llu bytes in a file of %zu (torn, or not safetensors)",
                     (unsigned long long)length, file->bytes);
    const char *text = (const char *)file->map + LENGTH_BYTES;
    if (length == 0 || *text != '{')
        return wrong(r, "its header is no JSON object (not safetensors)");
    file->header = json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES, &error);
    if (!file->header)
        return wrong(r, "its header is no JSON: %s", error.text);
    r->data = file->map + LENGTH_BYTES + length;
    r->data_bytes = file->bytes - LENGTH_BYTES - (size_t)length;
    return true;
}

/* Logs nothing: safetensors_open does, with the path. */
static descant_status read_tensors(struct reader *r)
{
    size_t most = json_object_size(r->file->header);
    r->file->tensors = memory_take_array(most, sizeof *r->file->tensors);
    const struct safetensor **sorted = memory_take_array(most, sizeof *sorted);
    descant_status status = DESCANT_OK;
    if (!r->file->tensors || !sorted)
        status = DESCANT_MEMORY;
    else if (!read_entries(r) || !check_cover(r, sorted))
        status = DESCANT_CORRUPT;
    memory_give(sorted);
    return status;
}

/* O_NONBLOCK: opening a named pipe must not wait for its writer. An empty file is not
 * mapped, since mmap refuses that. */
static descant_status map_file(struct safetensors *file, const char *path,
                               const struct log *log)
{
    struct stat about;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &about) != 0) {
        int error = errno;
        if (fd >= 0)
            close(fd);
        return log_fail(log, DESCANT_SYSTEM, "%s: cannot open: %s", path,
                        strerror(error));
    }
    descant_status status = DESCANT_OK;
    file->bytes = (size_t)about.st_size;
    if (!S_ISREG(about.st_mode)) {
        status = log_fail(log, DESCANT_CORRUPT, "%s: not a file", path);
    } else if (file->bytes > 0) {
        void *map = mmap(NULL, file->bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED)
            status = log_fail(log, DESCANT_SYSTEM, "%s: cannot map %zu bytes: %s", path,
                              file->bytes, strerror(errno));
        else
            file->map = map;
    }
    close(fd);
    return status;
}

descant_status safetensors_open(struct safetensors **out, const char *path,
                                const struct log *log)
{
    struct safetensors *file = memory_take(sizeof *file);
    if (!file)
        return log_fail(log, DESCANT_MEMORY, "%s: no memory to open it", path);
    struct reader r = {.file = file};
    descant_status status = map_file(file, path, log);
    if (status == DESCANT_OK) {
        status = read_header(&r) ? read_tensors(&r) : DESCANT_CORRUPT;
        enum file_kind kind =
            status == DESCANT_CORRUPT ? file_kind_of(path) : FILE_SAFETENSORS;
        if (kind != FILE_SAFETENSORS && kind != FILE_OTHER)
            log_fail(log, status, "%s is %s, no checkpoint or other safetensors file",
                     path, file_kind_text(kind));
        else if (status == DESCANT_CORRUPT)
            log_fail(log, status, "%s: %s", path, r.why);
        else if (status == DESCANT_MEMORY)
            log_fail(log, status, "%s: no memory for its list of tensors", path);
    }
    if (status != DESCANT_OK) {
        safetensors_close(file);
        return status;
    }
    *out = file;
    return DESCANT_OK;
}

void safetensors_close(struct safetensors *file)
{
    if (!file)
        return;
    if (file->map)
        munmap(file->map, file->bytes);
    json_decref(file->header);
    memory_give(file->tensors);
    memory_give(file);
}

size_t safetensors_count(const struct safetensors *file)
{
    return file->n;
}

const struct safetensor *safetensors_at(const struct safetensors *file, size_t k)
{
    return k < file->n ? &file->tensors[k] : NULL;
}

const struct safetensor *safetensors_find(const struct safetensors *file,
                                          const char *name)
{
    for (size_t i = 0; i < file->n; i++)
        if (strcmp(file->tensors[i].name, name) == 0)
            return &file->tensors[i];
    return NULL;
}

const void *safetensors_list(const struct safetensors *file, const char *name,
                             enum safetensors_type type, size_t *n)
{
    const struct safetensor *t = safetensors_find(file, name);
    if (!t || t->type != type || t->n_dims != 1)
        return NULL;
    *n = t->dims[0];
    return t->data;
}

const char *safetensors_text(const struct safetensors *file, const char *key)
{
    return json_string_value(
        json_object_get(json_object_get(file->header, metadata), key));
}

size_t safetensors_texts(const struct safetensors *file, struct safetensors_text *out,
                         size_t room)
{
    const char *key;
    json_t *text;
    size_t n = 0;

    json_object_foreach(json_object_get(file->header, metadata), key, text) {
        if (n < room)
            out[n] = (struct safetensors_text){key, json_string_value(text)};
        n++;
    }
    return n;
}
