/* SPDX-License-Identifier: MIT */
/* Safetensors files: 8 bytes of header length, a JSON header, raw little-endian data.
 * Writing is atomic (a temporary name, synced, renamed); reading maps the file and
 * refuses torn and foreign files and overlapping tensors, with the reason. */
#ifndef SAFETENSORS_H
#define SAFETENSORS_H

#include "base/base.h"

enum safetensors_type { SAFETENSORS_F32, SAFETENSORS_U8, SAFETENSORS_U64 };

struct safetensor {
    char name[64];
    enum safetensors_type type;
    int n_dims;
    size_t dims[2];
    const void *data;
    size_t bytes;
    /* writing, where data is NULL: puts the next bytes at `to`, asked for in order, some
     * whole elements at a time. False with errno: they cannot be had. */
    bool (*source)(void *of, void *to, size_t bytes);
    void *of;
    /* writing: of F32, NaN and Inf are refused, tested in the bytes that are written, for
     * the floats may be changing meanwhile */
    bool finite;
};

struct safetensors_text {       /* of "__metadata__": names and texts */
    const char *key, *value;
};

/* Writes the temporary file (NULL: path.tmp), syncs it, keeps the file that was at path
 * as `previous` (NULL: does not), and renames. On failure (a full disk, an unwritable
 * folder) path is as it was. INVALID for names that come twice and sizes that do not go
 * together. */
descant_status safetensors_write_by(const char *temporary, const char *path,
                                    const char *previous,
                                    const struct safetensor *tensors, size_t n,
                                    const struct safetensors_text *texts, size_t n_texts,
                                    const struct log *log);
static inline descant_status
safetensors_write(const char *path, const char *previous,
                  const struct safetensor *tensors, size_t n,
                  const struct safetensors_text *texts, size_t n_texts,
                  const struct log *log)
{
    return safetensors_write_by(NULL, path, previous, tensors, n, texts, n_texts, log);
}

/* A file whose tensors' sizes are known when their data is written. The data is given in
 * order, and `tensors` at the end, without data, lie in that order, too: the caller sees
 * to it that each is aligned to its elements. The head has room for tensors and texts as
 * `most`, of which each number is at its largest. A writer has path to itself; a failure
 * leaves path as it was. */
struct safetensors_late;
descant_status safetensors_begin(struct safetensors_late **out, const char *path,
                                 const struct safetensor *most, size_t n,
                                 const struct safetensors_text *texts, size_t n_texts,
                                 const struct log *log);
/* False: it cannot be written; safetensors_end tells why. */
bool safetensors_add(struct safetensors_late *late, const void *data, size_t bytes);
/* Either of them ends it. */
descant_status safetensors_end(struct safetensors_late *late,
                               const struct safetensor *tensors, size_t n,
                               const struct safetensors_text *texts, size_t n_texts,
                               const struct log *log);
void safetensors_give_up(struct safetensors_late *late);

/* Removes the files of a writer of path that was killed. */
void safetensors_tidy(const char *path);

struct safetensors;             /* a file that was read */

/* CORRUPT, with the reason, for a torn or foreign file; SYSTEM where it cannot be opened.
 */
descant_status safetensors_open(struct safetensors **out, const char *path,
                                const struct log *log);
void safetensors_close(struct safetensors *file);

/* Tensors point into the file and have the header's order: written files are laid out
 * by type, U64, F32, U8, and within it as given. */
size_t safetensors_count(const struct safetensors *file);
const struct safetensor *safetensors_at(const struct safetensors *file, size_t k);
const struct safetensor *safetensors_find(const struct safetensors *file,
                                          const char *name);
/* The elements of a tensor of this type and one dimension, *n of them; NULL: it has no
 * such one. */
const void *safetensors_list(const struct safetensors *file, const char *name,
                             enum safetensors_type type, size_t *n);
/* or NULL */
const char *safetensors_text(const struct safetensors *file, const char *key);
/* Writes the first `room` texts, which are the file's; returns how many it has. */
size_t safetensors_texts(const struct safetensors *file, struct safetensors_text *out,
                         size_t room);

#endif
