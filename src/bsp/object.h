/* SPDX-License-Identifier: MIT */
/* The shared memory object of a segment: its name, and its memory in this process. */
#ifndef OBJECT_H
#define OBJECT_H

#include "bsp/layout.h"

enum { OBJECT_NAME = 100 };     /* characters of a name, at most */

struct object {
    struct segment_header *header;      /* NULL: none */
    struct segment_header layout;       /* a copy of the header as it was checked, for
                                           modules can write to the header */
    size_t bytes;
    uint64_t device, inode;
};

/* Fills in the header of a segment with these numbers, all else 0; returns its bytes. */
struct segment_header object_layout(uint64_t n, uint32_t slots, uint32_t n_parts);

descant_status object_check_name(const char *name, const struct log *log);

/* Maps the segment that has the name, after testing its owner, version and sizes.
 * TIMEOUT, without a log line: there is none. */
descant_status object_open(struct object *object, const char *name,
                           const struct log *log);

/* Makes a new object: zeros except the layout, with all its pages, without a name. *fd is
 * for object_show; the caller closes it. */
descant_status object_make(struct object *object, const char *name,
                           const struct segment_header *layout, int *fd,
                           const struct log *log);

/* Gives the whole object its name in one step. DUPLICATE, without a log line: the name is
 * taken. */
descant_status object_show(int fd, const char *name, const struct log *log);

/* Guards the mapping against being cut short by others (guard.h). */
descant_status object_guard(const struct object *object, const char *name,
                            const struct log *log);

/* Removes the name, if it is this object's. Only the keeper calls it. */
void object_hide(const struct object *object, const char *name);

void object_close(struct object *object);

#endif
