/* SPDX-License-Identifier: MIT */
/* Writes a checkpoint and finds it again; safetensors_write replaces the file in one
 * step.
 *
 * A writer collects first: tensors, of which only places are noted, and texts, which are
 * copied. The floats are read as the file is written, so a run that trains on meanwhile
 * has each of them as it is then. A reader gets a file that is whole, or no file. The
 * name and the sizes of each tensor are compared with this run's before it is copied, and
 * a difference is CORRUPT, with both values in the message. */
#include "run/checkpoint.h"

#include <string.h>
#include <unistd.h>

/* --- writing --- */

struct contents *contents_create(size_t tensors, const struct log *log)
{
    struct contents *c = memory_take(sizeof *c);
    if (c && (c->tensors = memory_take_array(tensors, sizeof *c->tensors)))
        return c;
    memory_give(c);
    log_fail(log, DESCANT_MEMORY, "no memory for a checkpoint");
    return NULL;
}

void contents_destroy(struct contents *c)
{
    if (c)
        memory_give(c->tensors);
    memory_give(c);
}

/* The caller has counted its tensors for contents_create; one more would be a fault of
 * ours. NaN and Inf are refused in all tensors of floats. */
struct safetensor *contents_add(struct contents *c, const char *name,
                                enum safetensors_type type, const void *data, size_t n)
{
    static const size_t bytes[] = {[SAFETENSORS_F32] = 4, [SAFETENSORS_U8] = 1,
                                   [SAFETENSORS_U64] = 8};
    struct safetensor *s = &c->tensors[c->n_tensors++];
    snprintf(s->name, sizeof s->name, "%s", name);
    s->type = type;
    s->n_dims = 1;
    s->dims[0] = n;
    s->data = data;
    s->bytes = n * bytes[type];
    s->finite = true;
    return s;
}

void contents_tensors(struct contents *c, const struct tensor *tensors, size_t n,
                      const float *p)
{
    for (const struct tensor *from = tensors; from < tensors + n; from++) {
        struct safetensor *s =
            contents_add(c, from->name, SAFETENSORS_F32, p + from->at, from->n);
        s->n_dims = from->n_dims;
        s->dims[0] = from->dims[0];
        s->dims[1] = from->dims[1];
    }
}

void contents_text(struct contents *c, const char *key, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(c->room[c->n_texts], sizeof c->room[0], format, list);
    va_end(list);
    c->texts[c->n_texts] = (struct safetensors_text){key, c->room[c->n_texts]};
    c->n_texts++;
}

void contents_shards(struct contents *c, const struct shards *shards)
{
    char text[NAME_MAX + 64];

    shards_text(shards, text, sizeof text);
    contents_text(c, "shards", "%s", text);
    contents_add(c, "descant.shards", SAFETENSORS_U64, shards->rows, (size_t)shards->n);
}

/* Keys are the settings' own names, so a text that is added beside them must have another
 * name. */
void contents_told(struct contents *c, const struct told *told)
{
    for (size_t k = 0; k < told->n; k++, c->n_texts++) {
        char *text = c->room[c->n_texts];
        told_text(told, &told->table[k], text, TOLD_TEXT);
        c->texts[c->n_texts] = (struct safetensors_text){told->table[k].name, text};
    }
}

/* Where FILE is another run's, it has become FILE.old, and FILE.previous, which that run
 * may have left, is older still: it is removed, or becomes FILE.old where there was no
 * FILE. This comes after the writing, so that a full disk leaves the other run's files as
 * they were. */
descant_status checkpoint_put(const char *path, bool own, const struct contents *c,
                              const struct log *log)
{
    char previous[4096], old[4096];
    bool there = access(path, F_OK) == 0;

    snprintf(previous, sizeof previous, "%s.previous", path);
    snprintf(old, sizeof old, "%s.old", path);
    descant_status status =
        safetensors_write_by(c->temporary, path, own ? previous : old, c->tensors,
                             c->n_tensors, c->texts, c->n_texts, log);
    if (status != DESCANT_OK)
        return status;
    if (!own && there)
        unlink(previous);
    else if (!own)
        rename(previous, old);
    return DESCANT_OK;
}

void checkpoint_say_replaced(const char *path, const struct log *log)
{
    log_say(log, DESCANT_WARNING, "%s exists and will be replaced: it becomes %s.old; "
            "--resume would go on from it", path, path);
}

/* --- reading --- */

/* Where FILE is a link, FILE.previous is beside the link's target, where the writer has
 * put it. */
bool checkpoint_before(const char *path, char *previous, size_t room)
{
    char target[4096];

    snprintf(previous, room, "%s.previous",
             path_follow(path, target, sizeof target) ? target : path);
    return access(previous, F_OK) == 0;
}

bool checkpoint_there(const char *path)
{
    char previous[4096 + 16];
    return access(path, F_OK) == 0 || checkpoint_before(path, previous, sizeof previous);
}

/* Where rows are parted as they were, a rank has those that it wrote. */
bool checkpoint_wants(const struct checkpoint *c, int k)
{
    const char *was, *is;

    if (c->owners == 0)
        return true;
    if (c->owner < 0)
        return false;
    bool same = c->owners == c->shards.n && !c->shards.moved &&
                checkpoint_same(c, "rows-shares", &was, &is);
    return !same || c->owner == k;
}

/* The file, and its shards, as far as can be seen without reading all of them. One that
 * is not wanted need not be here; where it is, it is looked at all the same, so that
 * ranks with one folder find the same checkpoint good. */
static descant_status open_whole(struct checkpoint *c, const char *path)
{
    struct shard shard;
    descant_status status = safetensors_open(&c->file, path, NULL);

    if (status == DESCANT_OK)
        status = shards_of(c->file, path, &c->shards, NULL);
    for (int k = 0; status == DESCANT_OK && k < c->shards.n; k++) {
        char name[PATH_MAX];
        shards_path(&c->shards, path, k, name, sizeof name);
        if (!checkpoint_wants(c, k) && access(name, F_OK) != 0)
            continue;
        status = shard_open(&shard, &c->shards, path, k, NULL, NULL);
        if (status == DESCANT_OK)
            shard_close(&shard);
    }
    if (status != DESCANT_OK)
        checkpoint_close(c);
    return status;
}

/* The first failure is the reason that is told; that of FILE.previous stands beside
 * it. */
descant_status checkpoint_open(struct checkpoint *c, bool says)
{
    char previous[4096 + 16], why[LOG_LINE];
    descant_status status = open_whole(c, c->path);

    if (status == DESCANT_OK)
        return DESCANT_OK;
    snprintf(why, sizeof why, "%s", descant_last_error());
    if (!checkpoint_before(c->path, previous, sizeof previous))
        return log_fail(c->log, status, "%s", why);
    status = open_whole(c, previous);
    if (status != DESCANT_OK)
        return log_fail(c->log, status,
                        "%s; nor can the checkpoint before it be used: %s", why,
                        descant_last_error());
    if (says)
        log_say(c->log, DESCANT_WARNING,
                "%s; the run goes on from %s, the checkpoint before it", why, previous);
    return DESCANT_OK;
}

void checkpoint_close(struct checkpoint *c)
{
    if (c->file)
        safetensors_close(c->file);
    c->file = NULL;
}

descant_status checkpoint_find(const struct checkpoint *c, const struct tensor *want,
                               const struct safetensor **out)
{
    const struct safetensor *have = safetensors_find(c->file, want->name);

    if (!have)
        return log_fail(c->log, DESCANT_CORRUPT,
                        "%s is of another model: it has no tensor %s", c->path,
                        want->name);
    if (have->type != SAFETENSORS_F32 || have->n_dims != want->n_dims ||
        have->dims[0] != want->dims[0] ||
        (want->n_dims > 1 && have->dims[1] != want->dims[1]))
        return log_fail(
            c->log, DESCANT_CORRUPT,
            "%s is of another model: its tensor %s has %zu x %zu, not %zu x %zu", c->path,
            want->name, have->dims[0], have->n_dims > 1 ? have->dims[1] : 1,
            want->dims[0], want->n_dims > 1 ? want->dims[1] : 1);
    *out = have;
    return DESCANT_OK;
}

/* A failure leaves the tensors before the one at fault copied: the caller gives p up. */
descant_status checkpoint_take(const struct checkpoint *c, const struct tensor *tensors,
                               size_t n, float *p)
{
    for (const struct tensor *want = tensors; want < tensors + n; want++) {
        const struct safetensor *have;
        descant_status status = checkpoint_find(c, want, &have);
        if (status != DESCANT_OK)
            return status;
        memcpy(p + want->at, have->data, have->bytes);
    }
    return DESCANT_OK;
}

bool checkpoint_same(const struct checkpoint *c, const char *name, const char **was,
                     const char **is)
{
    static _Thread_local char now[TOLD_TEXT];
    const struct told *told = c->told;
    const struct option *s = option_find(told->table, told->n, name, strlen(name));

    *was = safetensors_text(c->file, name);
    *is = told_text(told, s, now, sizeof now);
    return !*was || strcmp(*was, *is) == 0;
}

/* Setting and tensor must both fit: two optimizers may have states of the same size. */
descant_status checkpoint_state(const struct checkpoint *c, const char *setting, float *p,
                                size_t n)
{
    const char *was, *is;
    bool tables = strcmp(setting, "optimizer") != 0;
    const char *name = tables ? "descant.table_optimizer" : "descant.optimizer";
    size_t n_had = 0;
    const float *had = safetensors_list(c->file, name, SAFETENSORS_F32, &n_had);

    if (!checkpoint_same(c, setting, &was, &is))
        return log_fail(c->log, DESCANT_CORRUPT,
                        "%s is of another optimizer: --%s was %s, not %s", c->path,
                        setting, was, is);
    if (n_had != n)
        return log_fail(c->log, DESCANT_CORRUPT,
                        "%s is of another optimizer: %s does not fit", c->path, name);
    if (n)
        memcpy(p, had, n * sizeof *p);
    return DESCANT_OK;
}
