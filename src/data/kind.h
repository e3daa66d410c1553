/* SPDX-License-Identifier: MIT */
/* The kind of a file, by its first bytes, decompressed. */
#ifndef KIND_H
#define KIND_H

enum file_kind {
    FILE_OTHER,
    FILE_EMPTY,
    FILE_SAFETENSORS,
    FILE_CACHE,
    FILE_LOG,
    FILE_DATA,
    FILE_TEXT,
    FILE_LABELS
};

/* OTHER also where it cannot be read */
enum file_kind file_kind_of(const char *path);
const char *file_kind_text(enum file_kind kind);    /* "a text file" */

#endif
