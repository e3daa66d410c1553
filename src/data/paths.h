/* SPDX-License-Identifier: MIT */
/* A list of files, cut at its commas, and texts about them. */
#ifndef DATA_PATHS_H
#define DATA_PATHS_H

#include "data/data.h"

enum { MOST_PATHS = 256 };
struct path_list {
    char *text;                         /* a copy of the names, cut into strings */
    const char *paths[MOST_PATHS];      /* (n) point into the text */
    size_t n;
};

/* names: paths with commas between them; empty ones are left out. path_list_fini follows
 * after a failure, too. */
descant_status path_list_init(struct path_list *list, const char *names,
                              const struct log *log);
void path_list_fini(struct path_list *list);
uint64_t path_list_bytes(const struct path_list *list);      /* of the files among them */
bool input_is_file(const char *path);       /* a regular file, which can be read again */

/* "PATH, read as FORMAT, has 13 dense features, 26 fields and 1 class". */
enum { INPUTS_ROOM = 512 };
const char *inputs_text(const struct data_options *data, const struct data_shape *shape,
                        char *text, size_t room);

#endif
