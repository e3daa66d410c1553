/* SPDX-License-Identifier: MIT */
/* The kind of a file, by its first bytes. So messages name the kind of a file that is
 * given for another one, and `descant info` chooses what to show. The rest of the file is
 * not tested. */
#include "data/kind.h"
#include "data/data.h"

#include <string.h>
#include <sys/stat.h>

enum { LOOK_BYTES = 4096 };

enum file_kind file_kind_of(const char *path)
{
    static const char log[] = "{\"kind\":\"header\"";
    char first[LOOK_BYTES];
    size_t n;
    uint64_t length = UINT64_MAX;   /* of a safetensors file's header, an object */
    enum data_format format;
    struct stat of;

    if (stat(path, &of) != 0 || !S_ISREG(of.st_mode) ||
        data_peek(path, first, sizeof first, &n, &format, NULL) != DESCANT_OK)
        return FILE_OTHER;
    if (n == 0)
        return FILE_EMPTY;
    if (n >= sizeof length + 2 && first[sizeof length] == '{')
        memcpy(&length, first, sizeof length);
    if (length <= (uint64_t)of.st_size)
        return FILE_SAFETENSORS;
    if (n >= sizeof log - 1 && memcmp(first, log, sizeof log - 1) == 0)
        return FILE_LOG;
    if (n >= 8 && memcmp(first, "\0\0\x08\x01", 4) == 0)
        return FILE_LABELS;
    if (format != DATA_AUTO)
        return format == DATA_CACHE ? FILE_CACHE : FILE_DATA;
    /* a text's bytes below a space: tabs, ends of lines and pages, and ESC, by which a
     * colour begins */
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)first[i] < ' ' &&
            !strchr("\t\n\v\f\r\033", first[i] ? first[i] : 1))
            return FILE_OTHER;
    return FILE_TEXT;
}

const char *file_kind_text(enum file_kind kind)
{
    static const char *const texts[] = {
        [FILE_OTHER] = "a file of an unknown kind",
        [FILE_EMPTY] = "an empty file",
        [FILE_SAFETENSORS] = "a safetensors file",
        [FILE_CACHE] = "a cache of descant gen cache",
        [FILE_LOG] = "a run's log",
        [FILE_DATA] = "data to train on",
        [FILE_TEXT] = "a text file",
        [FILE_LABELS] = "the IDX labels of images, which are read with them",
    };
    return texts[kind];
}
