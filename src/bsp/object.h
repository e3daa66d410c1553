/* SPDX-License-Identifier: MIT */
/* The shared memory object of a segment: its name, and its memory in this process. */
#ifndef OBJECT_H
#define OBJECT_H

#include "bsp/layout.h"

enum { OBJECT_NAME = 100 };     /* characters of a name, at most */

struct object {
    struct segment_header *header;      /* NULL: none */
    struct segment_header layout;       /* the header as it was checked: any module can
                                           write that */
    size_t bytes;
    uint64_t device, inode;
};

/* What it takes: the header of a segment with these numbers, all else 0. */
struct segment_header object_layout(uint64_t n, uint32_t slots, uint32_t n_parts);

descant_status object_check_name(const char *name, const struct log *log);

/* Maps the segment that has the name, after looking at its owner, version and sizes.
 * TIMEOUT, and nothing is logged: there is none. */
descant_status object_open(struct object *object, const char *name,
                           const struct log *log);

/* A new one: zeros but for the layout, with all its pages, but not yet with its name. *fd
 * is for show, and the caller's to close. */
descant_status object_make(struct object *object, const char *name,
                           const struct segment_header *layout, int *fd,
                           const struct log *log);

/* Gives it the name at once, whole. DUPLICATE, and nothing is logged: the name is taken.
 */
descant_status object_show(int fd, const char *name, const struct log *log);

/* Lets it be cut short by others (guard.h). */
descant_status object_guard(const struct object *object, const char *name,
                            const struct log *log);

/* Takes the name from it, if it is this object that has it. By its keeper alone. */
void object_hide(const struct object *object, const char *name);

void object_close(struct object *object);

#endif
