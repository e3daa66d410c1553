/* SPDX-License-Identifier: MIT */
/* The replica: a list of segments, in the order of their declaration, which all trainers
 * of a job share. The layers above see floats and a count, never a layer of the network.
 * Names are checked here, since they travel between trainers as lines of the manifest. */
#include "sync/replica.h"

#include "kernels/kernels.h"

#include <stdlib.h>
#include <string.h>

void replica_init(struct replica *r)
{
    *r = (struct replica){0};
    pthread_mutex_init(&r->lock, NULL);
}

void replica_fini(struct replica *r)
{
    for (size_t i = 0; i < r->room; i++)        /* also of a segment that was prepared and
                                                   not added */
        memory_give(r->segments[i].name);
    for (size_t i = 0; i < r->n_segments; i++)
        memory_give(r->segments[i].kept);
    memory_give(r->segments);
    memory_give(r->live.extents);
    pthread_mutex_destroy(&r->lock);
    *r = (struct replica){0};
}

struct replica_segment *replica_find(struct replica *r, const char *name)
{
    for (size_t i = 0; i < r->n_segments; i++)
        if (strcmp(r->segments[i].name, name) == 0)
            return &r->segments[i];
    return NULL;
}

descant_status replica_check(struct replica *r, const char *name, size_t n, size_t *at,
                             const struct log *log)
{
    if (name == NULL || *name == '\0' || strpbrk(name, " \t\r\n") != NULL)
        return log_fail(log, DESCANT_INVALID,
                        "a segment needs a name without white space");
    if (n == 0 || n > SIZE_MAX / 64)
        return log_fail(log, DESCANT_INVALID, "segment '%s': %zu floats cannot be", name,
                        n);
    if (replica_find(r, name) != NULL)
        return log_fail(log, DESCANT_DUPLICATE, "segment '%s' is there already", name);
    char *copy =
        memory_grow(&r->segments, &r->room, r->n_segments, r->n_segments + 1,
                    sizeof *r->segments)
            ? memory_take(strlen(name) + 1)
            : NULL;
    if (copy == NULL)
        return log_fail(log, DESCANT_MEMORY, "no memory for segment '%s'", name);
    strcpy(copy, name);
    /* of a segment that was prepared and not added */
    memory_give(r->segments[r->n_segments].name);
    r->segments[r->n_segments].name = copy;
    *at = r->n;
    return DESCANT_OK;
}

const struct replica_segment *replica_overlap(const struct replica *r,
                                              const float *memory, size_t n)
{
    uintptr_t from = (uintptr_t)memory, end = from + n * sizeof *memory;
    for (size_t i = 0; i < r->n_segments; i++) {
        uintptr_t its = (uintptr_t)r->segments[i].memory;
        if (its < end && from < its + r->segments[i].n * sizeof *memory)
            return &r->segments[i];
    }
    return NULL;
}

void replica_add(struct replica *r, float *memory, size_t n, bool attached)
{
    struct replica_segment *s = &r->segments[r->n_segments++]; /* its name is there */
    s->memory = memory;
    s->kept = NULL;
    s->lent = attached ? NULL : memory;
    s->keeps = NULL;
    s->at = r->n;
    s->n = n;
    s->attached = attached;
    r->n += fabric_round_up(n);
    r->any_attached |= attached;
}

descant_status replica_fix(struct replica *r)
{
    r->live.n = r->n;
    r->live.n_extents = r->n_segments;
    r->live.extents = memory_take_array(r->n_segments + 1, sizeof *r->live.extents);
    if (r->live.extents == NULL)
        return DESCANT_MEMORY;
    for (size_t i = 0; i < r->n_segments; i++)
        r->live.extents[i] = (struct extent){
            .at = r->segments[i].at, .n = r->segments[i].n, .p = r->segments[i].memory};
    return DESCANT_OK;
}

bool replica_detach(struct replica *r, struct replica_segment *s, bool keep)
{
    struct extent *e = &r->live.extents[s - r->segments];

    if (s->memory != NULL && keep) {
        s->kept = memory_take_array(s->n, sizeof *s->kept);
        if (s->kept == NULL)
            return false;
        kernels_best()->copy(s->kept, s->memory, s->n);
        e->p = s->kept;
    } else if (s->kept == NULL) {
        e->n = 0;
    }
    s->memory = NULL;
    return true;
}

char *replica_manifest(const struct replica *r, const char *plan)
{
    size_t room = strlen(plan) + 16;
    for (size_t i = 0; i < r->n_segments; i++)
        room += strlen(r->segments[i].name) + 32;
    char *text = memory_take(room);
    if (text == NULL)
        return NULL;
    size_t used = (size_t)snprintf(text, room, "plan %s\n", plan);
    for (size_t i = 0; i < r->n_segments; i++)
        used += (size_t)snprintf(text + used, room - used, "segment %s %zu\n",
                                 r->segments[i].name, r->segments[i].n);
    return text;
}

void replica_each(struct replica *r, size_t from, size_t n, replica_fn *fn, void *context)
{
    size_t low = 0, high = r->n_segments, end = from + n;
    while (low < high) {        /* the first segment that ends after from */
        size_t middle = (low + high) / 2;
        if (r->segments[middle].at + r->segments[middle].n <= from)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < r->n_segments && r->segments[low].at < end; low++) {
        const struct replica_segment *s = &r->segments[low];
        if (s->memory == NULL)
            continue;
        size_t a = s->at > from ? s->at : from;
        size_t b = s->at + s->n < end ? s->at + s->n : end;
        fn(context, s->memory + (a - s->at), a, b - a);
    }
}
