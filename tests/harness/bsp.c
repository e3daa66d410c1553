/* SPDX-License-Identifier: MIT */
/* Modules of descant bsp, and what its runs leave. */
#include "harness/bsp.h"

#include <fcntl.h>
#include <sys/mman.h>

char checkpoint[96];

static int until_the_end(struct descant_ml *ml, const char *kind, int most)
{
    struct descant_ml_model model;
    float gradient[FLOATS];
    for (int k = 0; k < most; k++) {
        descant_status status = descant_ml_pin(ml, &model);
        bool bad = strcmp(kind, "nan") == 0 && k % 2;
        for (int i = 0; i < FLOATS; i++)
            gradient[i] = bad && i == 3 ? (float)strtod("nan", NULL) : 3;
        if (status == DESCANT_OK)
            status = descant_ml_add(ml, gradient, EXAMPLES);
        if (status == DESCANT_ENDED)
            return 0;
        usleep(300);
    }
    return 0;
}

/* Module 0 of the kinds wild and cut: changes every word of the header until it is
 * ended, or takes the object's bytes away. */
static int be_wild(bool cut)
{
    const char *name = getenv("DESCANT_SEGMENT");
    struct object object = {0};
    char path[120];
    snprintf(path, sizeof path, "/descant.%s", name);
    int fd = shm_open(path, O_RDWR, 0);
    if (fd < 0 || object_open(&object, name, NULL) != DESCANT_OK)
        return 9;
    if (cut && ftruncate(fd, 0) != 0)
        return 8;
    while (cut)
        pause();
    for (uint64_t k = 1;; k = k * UINT64_C(6364136223846793005) + 1442695040888963407)
        ((volatile uint64_t *)(void *)object.header)[(k >> 33) % 24] = k;
}

int be_module(const char *kind)
{
    struct descant_ml *ml;
    bool first = strcmp(getenv("DESCANT_MODULE"), "0") == 0;
    int most = strcmp(kind, "times") == 0 ? 50 : strcmp(kind, "dies") == 0 ? 20 : INT_MAX;
    if (first && strcmp(kind, "late") == 0)
        pause();
    if (descant_ml_attach(&ml, NULL, 30) != DESCANT_OK)
        return 9;
    if (strcmp(kind, "fails") == 0 || (first && strcmp(kind, "first-fails") == 0))
        return 3;
    if (first && (strcmp(kind, "wild") == 0 || strcmp(kind, "cut") == 0)) {
        struct descant_ml_model model = {.version = 0};
        until_the_end(ml, kind, 20);
        while (descant_ml_pin(ml, &model) == DESCANT_OK && model.version < 2)
            usleep(300);                /* until a step was made: there is something to keep */
        return be_wild(kind[0] == 'c');
    }
    int status = until_the_end(ml, kind, most);
    if (strcmp(kind, "dies") == 0)
        raise(SIGKILL);
    if (strcmp(kind, "deaf") == 0) {
        signal(SIGTERM, SIG_IGN);
        for (;;)
            pause();
    }
    descant_ml_detach(ml);
    return status;
}

bool segment_left(int k)
{
    char path[120];
    snprintf(path, sizeof path, "/dev/shm/descant.%s-%d", segment_name, k);
    return access(path, F_OK) == 0;
}

uint64_t check_checkpoint(void)
{
    return check_checkpoint_but(0);
}

uint64_t check_checkpoint_but(int lost)
{
    struct safetensors *file;
    unsigned long long version, steps, gradients, examples;
    ck_assert_msg(safetensors_open(&file, checkpoint, NULL) == DESCANT_OK, "%s",
                  descant_last_error());
    const char *text = safetensors_text(file, "progress");
    ck_assert_int_eq(
        sscanf(text, "%llu %llu %llu %llu", &version, &steps, &gradients, &examples), 4);
    ck_assert_uint_eq(examples, gradients * EXAMPLES);
    const struct safetensor *w = safetensors_find(file, "w");
    ck_assert(w && w->bytes == FLOATS * sizeof(float));
    for (int i = 0; i < FLOATS; i++) {
        float moved = ((const float *)w->data)[i] / -1.5f;
        ck_assert_float_le(moved, (float)steps);
        ck_assert_float_ge(moved, (float)steps - (float)lost);
    }
    safetensors_close(file);
    return steps;
}

struct descant_ml *attach_to(int k)
{
    char name[80];
    struct descant_ml *ml;
    snprintf(name, sizeof name, "%s-%d", segment_name, k);
    ck_assert_msg(descant_ml_attach(&ml, name, 30) == DESCANT_OK, "%s",
                  descant_last_error());
    return ml;
}

void wait_steps(double least)
{
    wait_logged("superstep", "superstep", least);
}

void wait_modules(double n)
{
    wait_logged("superstep", "modules", n);
}

void set_up_bsp(void)
{
    new_name();
    make_folder();
    snprintf(checkpoint, sizeof checkpoint, "%s/model.safetensors", folder);
    snprintf(log_file, sizeof log_file, "%s/run.jsonl", folder);
    snprintf(said_file, sizeof said_file, "%s/said", folder);
}
