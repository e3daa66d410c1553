/* SPDX-License-Identifier: MIT */
/* The files that a user has named, as the readers take them, and in words. */
#include "data/paths.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

descant_status path_list_init(struct path_list *list, const char *names,
                              const struct log *log)
{
    memset(list, 0, sizeof *list);
    list->text = strdup(names);
    if (!list->text)
        return log_fail(log, DESCANT_MEMORY, "no memory for the list of files");
    for (char *at = list->text, *next; at; at = next) {
        next = strchr(at, ',');
        if (next)
            *next++ = 0;
        if (!*at)
            continue;
        if (list->n == MOST_PATHS)
            return log_fail(log, DESCANT_INVALID, "more than %d files", MOST_PATHS);
        list->paths[list->n++] = at;
    }
    return list->n ? DESCANT_OK
                   : log_fail(log, DESCANT_INVALID, "no file in '%s'", names);
}

void path_list_fini(struct path_list *list)
{
    free(list->text);
    list->text = NULL;
}

uint64_t path_list_bytes(const struct path_list *list)
{
    struct stat of;
    uint64_t bytes = 0;

    for (size_t k = 0; k < list->n; k++)
        if (stat(list->paths[k], &of) == 0 && S_ISREG(of.st_mode))
            bytes += (uint64_t)of.st_size;
    return bytes;
}

bool input_is_file(const char *path)
{
    struct stat of;
    return strcmp(path, "-") != 0 && stat(path, &of) == 0 && S_ISREG(of.st_mode);
}

const char *inputs_text(const struct data_options *data, const struct data_shape *shape,
                        char *text, size_t room)
{
    const char *name = strcmp(data->paths[0], "-") ? data->paths[0] : "stdin";
    int dense = shape->n_dense, fields = shape->n_fields, classes = shape->n_classes;

    snprintf(text, room,
             "%s, read as %s, has %d dense feature%s, %d field%s and %d class%s", name,
             data_format_names[data->format], dense, dense == 1 ? "" : "s", fields,
             fields == 1 ? "" : "s", classes, classes == 1 ? "" : "es");
    return text;
}
