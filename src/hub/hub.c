/* SPDX-License-Identifier: MIT */
/* The hub as a process. Its job does all the work (sync/hub.c); one thread sleeps in
 * finish, and the main thread keeps the state and the figures.
 *
 * The trainers have all that the hub has, and it takes theirs when it is started again.
 * The file is for the case that all of them end, too: then the next ones begin with it,
 * and what was merged in the last --state-every seconds is lost. So a signal ends the hub
 * like a kill, after a last write: trainers go on, and wait for it. */
#include "hub/hub.h"

#include "run/signals.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define LOOK_NS UINT64_C(100000000)
#define PAGE_NS UINT64_C(1000000000)
#define JUST_NS UINT64_C(200000000)     /* since then hardly anything was merged */
#define EVER_S 1e9

struct hub {
    const struct hub_options *o;
    struct descant *job;
    struct log log;
    _Atomic int ended;          /* set by the waiting thread: 1 + the status of finish */
    uint64_t kept_ns, page_ns;  /* the last write; 0: none */
    char page[128];
};

static void to_err(void *user, enum descant_level level, const char *line)
{
    if (level >= DESCANT_INFO)
        fprintf(user, "descant: %s\n", line);
}

static void *await_end(void *of)
{
    struct hub *h = of;

    atomic_store(&h->ended, 1 + (int)descant_finish(h->job, DESCANT_FINAL_LOCAL));
    return NULL;
}

/* Without memory, or a disk that takes it, the job goes on, and the next write may do. */
static void keep(struct hub *h)
{
    size_t bytes = 0;

    if (!h->o->state || descant_outer_save(h->job, NULL, &bytes) != DESCANT_OK)
        return;
    void *memory = memory_take(bytes);
    if (!memory)
        log_say(&h->log, DESCANT_WARNING, "no memory for %zu bytes of state", bytes);
    if (memory && descant_outer_save(h->job, memory, &bytes) == DESCANT_OK &&
        kept_write(h->o->state, memory, bytes, &h->log))
        h->kept_ns = clock_now_ns();
    memory_give(memory);
}

static descant_status load(struct hub *h)
{
    size_t bytes = 0;

    if (h->o->state && !kept_check(h->o->state, &h->log))
        return DESCANT_SYSTEM;
    void *memory = h->o->state ? kept_read(h->o->state, &bytes, &h->log) : NULL;

    if (!memory)
        return bytes ? DESCANT_SYSTEM : DESCANT_OK;
    descant_status status = descant_outer_load(h->job, memory, bytes);
    if (status == DESCANT_OK)
        log_say(&h->log, DESCANT_INFO, "a job that begins here begins with %s",
                h->o->state);
    memory_give(memory);
    return status;
}

static descant_status begin(struct hub *h, FILE *err)
{
    struct descant_options options = descant_options_default();
    char address[1024];
    bool star = strstr(h->o->address, ",star") != NULL;

    snprintf(address, sizeof address, "%s%s", h->o->address, star ? "" : ",star=1");
    options.job = address;
    options.hub = 1;
    options.size = (int)h->o->trainers;
    options.start_s = EVER_S;
    options.log = to_err;
    options.log_user = err;
    descant_status status = descant_open(&h->job, &options);
    if (status == DESCANT_OK)
        status = load(h);
    if (status != DESCANT_OK)
        return status;
    log_say(&h->log, DESCANT_INFO, "%s waits for %d trainer%s", address, options.size,
            options.size == 1 ? "" : "s");
    page_write(h->page, NULL, 0);
    status = descant_start(h->job);
    if (status == DESCANT_OK)
        log_say(&h->log, DESCANT_INFO, "the job has begun");
    return status;
}

static void serve(struct hub *h)
{
    uint64_t every = (uint64_t)(h->o->state_every * 1e9), next = clock_now_ns() + every;

    while (!atomic_load(&h->ended) && !signals_heard()) {
        uint64_t now = clock_now_ns();
        if (now >= next) {
            keep(h);
            next = now + every;
        }
        if (now - h->page_ns >= PAGE_NS) {
            page_write(h->page, h->job, h->kept_ns);
            h->page_ns = now;
        }
        clock_sleep_until(now + LOOK_NS);
    }
    if (clock_now_ns() - h->kept_ns > JUST_NS)
        keep(h);
}

int hub_run(const struct hub_options *o, FILE *err)
{
    struct hub h = {.o = o, .log = {to_err, err, -1}};
    pthread_t waits;

    page_path(o->address, h.page, sizeof h.page);
    bool good = begin(&h, err) == DESCANT_OK;
    signals_forget();
    signals_heed();
    if (good && pthread_create(&waits, NULL, await_end, &h) != 0) {
        log_fail(&h.log, DESCANT_SYSTEM, "no thread to wait for the end");
        good = false;
    }
    if (!good) {
        unlink(h.page);
        descant_close(h.job);
        return 1;
    }
    serve(&h);
    unlink(h.page);
    if (!atomic_load(&h.ended)) {
        fflush(err);
        _exit(128 + signals_heard());
    }
    pthread_join(waits, NULL);
    good = atomic_load(&h.ended) == 1 + (int)DESCANT_OK;
    descant_status status = descant_close(h.job);
    log_say(&h.log, DESCANT_INFO, "all trainers have finished");
    return good && status == DESCANT_OK ? 0 : 1;
}
