/* SPDX-License-Identifier: MIT */
/* Runs of descant bsp as real processes. The modules are the test's own program, called with
 * "module KIND"; all their gradients are 3 everywhere, so after s steps of plain SGD with rate 0.5
 * each float is -1.5 s, whoever gave how many of them. */
#ifndef BSP_HELP_H
#define BSP_HELP_H

#include "cli/cli.h"
#include "data/safetensors.h"
#include "segment_help.h"
#include "bsp/object.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { FLOATS = 5, EXAMPLES = 4, PATIENCE_MS = 30000 };

#define NEVER_STALE "--bound 1000000000"    /* each gradient counts, however late it comes */

static char root[] = "/tmp/descant-bsp-XXXXXX";
static char self[PATH_MAX], said[16384], checkpoint[96], run_log[96], said_file[96];

/* --- a module --- */

static inline int until_the_end(struct descant_ml *ml, const char *kind, int most)
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

/* Module 0 of the kinds wild and cut: changes every word of the header until it is ended, or takes
 * the object's bytes away. */
static inline int be_wild(bool cut)
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

/* constant, nan: until the run ends; times: 50 gradients; dies: is killed after 20; fails: at once,
 * and first-fails if it is module 0; deaf: never leaves; late: module 0 never comes; wild, cut: module 0
 * writes where it must not. */
static inline int be_module(const char *kind)
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
    if (first && (strcmp(kind, "wild") == 0 || strcmp(kind, "cut") == 0))
        return until_the_end(ml, kind, 20) + be_wild(kind[0] == 'c');
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

/* --- a run --- */

static inline int call(char *line, FILE *out)
{
    static char name[] = "descant", bsp[] = "bsp";
    char *argv[64] = {name, bsp};
    int argc = 2;
    for (char *word = strtok(line, " "); word && argc < 63; word = strtok(NULL, " "))
        argv[argc++] = word;
    return cli_main(argc, argv, out, out);
}

/* "descant bsp" with that line, in a process of its own. */
static inline pid_t begin_line(char *line)
{
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        FILE *out = fopen(said_file, "ae");
        setvbuf(out, NULL, _IOLBF, 0);
        int status = call(line, out);
        fclose(out);
        _exit(status);
    }
    ck_assert_int_gt(pid, 0);
    return pid;
}

static inline void read_said(void)
{
    FILE *in = fopen(said_file, "re");
    size_t n = in ? fread(said, 1, sizeof said - 1, in) : 0;
    said[n] = 0;
    if (in)
        fclose(in);
}

/* Its exit status, or 128 + the signal. */
static inline int end(pid_t pid)
{
    int status = 0, tries = 0;
    while (waitpid(pid, &status, WNOHANG) == 0 && tries++ < PATIENCE_MS)
        usleep(1000);
    read_said();
    if (tries >= PATIENCE_MS)
        kill(pid, SIGKILL);
    ck_assert_msg(tries < PATIENCE_MS, "it does not end: %s", said);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static inline void says(const char *text)
{
    ck_assert_msg(strstr(said, text) != NULL, "'%s' is not in:\n%s", text, said);
}

/* Waits until that has been said so many times. */
static inline void wait_said(const char *text, int times)
{
    int tries = 0, seen = 0;
    for (; seen < times && tries < PATIENCE_MS; tries++, usleep(1000)) {
        read_said();
        seen = 0;
        for (const char *at = said; (at = strstr(at, text)) != NULL; at++)
            seen++;
    }
    ck_assert_msg(seen >= times, "'%s' is not %d times in:\n%s", text, times, said);
}

static inline bool segment_left(int k)
{
    char path[120];
    snprintf(path, sizeof path, "/dev/shm/descant.%s-%d", segment_name, k);
    return access(path, F_OK) == 0;
}

/* Of the last line of the log that has it; -1: none has. */
static inline double logged(const char *kind, const char *key)
{
    char line[2048], quoted[64];
    double value = -1;
    FILE *in = fopen(run_log, "re");
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    while (in && fgets(line, sizeof line, in)) {
        const char *at = strstr(line, kind) ? strstr(line, quoted) : NULL;
        value = at && strchr(line, '\n') ? strtod(at + strlen(quoted), NULL) : value;
    }
    if (in)
        fclose(in);
    return value;
}

static inline double summed(const char *key, int *lines)
{
    char line[2048], quoted[64];
    double sum = 0;
    FILE *in = fopen(run_log, "re");
    ck_assert_ptr_nonnull(in);
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    for (*lines = 0; fgets(line, sizeof line, in);) {
        const char *at = strstr(line, "\"kind\":\"superstep\"") ? strstr(line, quoted) : NULL;
        sum += at ? strtod(at + strlen(quoted), NULL) : 0;
        *lines += at != NULL;
    }
    fclose(in);
    return sum;
}

static inline void wait_steps(double least)
{
    int tries = 0;
    while (logged("superstep\"", "superstep") < least && tries++ < PATIENCE_MS)
        usleep(1000);
    read_said();
    ck_assert_msg(tries < PATIENCE_MS, "no %g supersteps: %s", least, said);
}

static inline void wait_modules(double n)
{
    for (int tries = 0; logged("superstep\"", "modules") < n && tries < PATIENCE_MS; tries++)
        usleep(1000);
    read_said();
    ck_assert_msg(logged("superstep\"", "modules") >= n, "no %g modules: %s", n, said);
}

/* The checkpoint is what so many steps make, to the bit; returns them. */
static uint64_t check_checkpoint(void)
{
    struct safetensors *file;
    unsigned long long version, steps, gradients, examples;
    ck_assert_msg(safetensors_open(&file, checkpoint, NULL) == DESCANT_OK, "%s",
                  descant_last_error());
    const char *text = safetensors_text(file, "progress");
    ck_assert_int_eq(sscanf(text, "%llu %llu %llu %llu", &version, &steps, &gradients, &examples),
                     4);
    ck_assert_uint_eq(examples, gradients * EXAMPLES);
    const struct safetensor *w = safetensors_find(file, "w");
    ck_assert(w && w->bytes == FLOATS * sizeof(float));
    for (int i = 0; i < FLOATS; i++)
        ck_assert_float_eq(((const float *)w->data)[i], -1.5f * (float)steps);
    safetensors_close(file);
    return steps;
}

static inline void children_of(pid_t parent, pid_t *pids, int most)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)parent, (int)parent);
    FILE *in = fopen(path, "re");
    for (int k = 0; k < most; k++)
        if (!in || fscanf(in, "%d", &pids[k]) != 1)
            pids[k] = 0;
    if (in)
        fclose(in);
}

/* There is no such process, or nobody has reaped it. */
static inline bool is_gone(pid_t pid)
{
    char path[64], state = 'Z';
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *in = fopen(path, "re");
    if (in && fscanf(in, "%*d %*s %c", &state) != 1)
        state = 'Z';
    if (in)
        fclose(in);
    return state == 'Z';
}

static inline struct descant_ml *attach_to(int k)
{
    char name[80];
    struct descant_ml *ml;
    snprintf(name, sizeof name, "%s-%d", segment_name, k);
    ck_assert_msg(descant_ml_attach(&ml, name, 30) == DESCANT_OK, "%s", descant_last_error());
    return ml;
}

static inline void wait_file(const char *path)
{
    for (int tries = 0; access(path, F_OK) != 0 && tries < PATIENCE_MS; tries++)
        usleep(1000);
    ck_assert_int_eq(access(path, F_OK), 0);
}

static inline int ask(char *line)
{
    FILE *out = fopen(said_file, "we");
    int status = call(line, out);
    fclose(out);
    read_said();
    return status;
}

static inline void setup(void)
{
    new_name();
    snprintf(checkpoint, sizeof checkpoint, "%s/%d.safetensors", root, (int)getpid());
    snprintf(run_log, sizeof run_log, "%s/%d.jsonl", root, (int)getpid());
    snprintf(said_file, sizeof said_file, "%s/%d.said", root, (int)getpid());
}

/* main, but for the suite; argv has gone to a module before. */
static inline int run_bsp(Suite *suite)
{
    char command[64];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0 || !mkdtemp(root))
        return EXIT_FAILURE;
    int status = run_segments(suite);
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command) == 0 ? status : EXIT_FAILURE;
}

#endif
