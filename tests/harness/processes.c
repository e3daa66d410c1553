/* SPDX-License-Identifier: MIT */
/* What a test needs to know of processes that it has begun. */
#include "harness/processes.h"
#include "harness/wait.h"

#include <check.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

char self[PATH_MAX], said_file[96], said[1 << 16];

enum { TOLD = 3000 };  /* characters of `said` that fit into a failure's message */

void find_self(void)
{
    if (readlink("/proc/self/exe", self, sizeof self - 1) <= 0)
        exit(EXIT_FAILURE);
}

pid_t fork_saying(FILE **out, int signal_at_end)
{
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, signal_at_end);
        *out = fopen(said_file, "ae");
        if (!*out)
            _exit(EXIT_FAILURE);
        setvbuf(*out, NULL, _IOLBF, 0);
    }
    return pid;
}

void read_said(void)
{
    FILE *in = fopen(said_file, "re");
    said[in ? fread(said, 1, sizeof said - 1, in) : 0] = 0;
    if (in)
        fclose(in);
}

void says(const char *text)
{
    ck_assert_msg(strstr(said, text) != NULL, "'%s' is not in:\n%.*s", text, TOLD, said);
}

int times_said(const char *text)
{
    int n = 0;
    read_said();
    for (const char *at = said; (at = strstr(at, text)) != NULL; at++)
        n++;
    return n;
}

void wait_said(const char *text, int times)
{
    WAIT_UNTIL(times_said(text) >= times, "'%s' %d times in:\n%s", text, times, said);
}

int end_within(pid_t pid, int seconds)
{
    uint64_t until = clock_now_ns() + (uint64_t)seconds * UINT64_C(1000000000);
    int status = 0;
    pid_t got;
    while ((got = waitpid(pid, &status, WNOHANG)) == 0 && clock_now_ns() < until)
        usleep(1000);
    read_said();
    if (got == 0 && kill(-pid, SIGKILL) != 0) /* where it has a group, all of that */
        kill(pid, SIGKILL);
    ck_assert_msg(got == pid, "it does not end in %d s: %.*s", seconds, TOLD, said);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int end_of(pid_t pid)
{
    return end_within(pid, PATIENCE_S);
}

int children_of(pid_t parent, pid_t *pids, int most)
{
    char path[64];
    int n = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)parent, (int)parent);
    FILE *in = fopen(path, "re");
    while (in && n < most && fscanf(in, "%d", &pids[n]) == 1)
        n++;
    if (in)
        fclose(in);
    return n;
}

char state_of(pid_t pid)
{
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *in = fopen(path, "re");
    if (in && fscanf(in, "%*d %*s %c", &state) != 1)
        state = 0;
    if (in)
        fclose(in);
    return state;
}

/* It may sleep on its way for a moment: here 20 looks in a row. */
void wait_asleep(pid_t pid)
{
    int n = 0;
    WAIT_UNTIL((n = state_of(pid) == 'S' ? n + 1 : 0) == 20, "process %d: %c", (int)pid,
               state_of(pid));
}

bool is_pending(pid_t pid, int number)
{
    char path[64], line[256];
    unsigned long long set = 0, some;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *in = fopen(path, "re");
    while (in && fgets(line, sizeof line, in))
        if (sscanf(line, "SigPnd: %llx", &some) == 1 ||
            sscanf(line, "ShdPnd: %llx", &some) == 1)
            set |= some;
    if (in)
        fclose(in);
    return set >> (number - 1) & 1;
}

bool is_gone(pid_t pid)
{
    char state = state_of(pid);
    return state == 0 || state == 'Z';
}

int threads_of(pid_t pid)
{
    char path[64];
    int n = 0;
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *dir = opendir(path);
    for (struct dirent *one; dir && (one = readdir(dir));)
        n += *one->d_name != '.';
    if (dir)
        closedir(dir);
    return n;
}

bool has_open(pid_t pid, const char *name)
{
    char path[64], at[256];
    for (int fd = 0; fd < 64; fd++) {
        snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, fd);
        ssize_t n = readlink(path, at, sizeof at - 1);
        if (n > 0 && (size_t)n == strlen(name) && strncmp(at, name, (size_t)n) == 0)
            return true;
    }
    return false;
}

void *share_memory(size_t bytes)
{
    void *shared =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(shared, MAP_FAILED);
    return shared;
}

void wait_file(const char *path)
{
    WAIT_UNTIL(access(path, F_OK) == 0, "%s; said: %s", path, (read_said(), said));
}

bool catches(pid_t pid, int signal)
{
    char path[64], line[256];
    unsigned long long caught = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *in = fopen(path, "re");
    while (in && fgets(line, sizeof line, in))
        sscanf(line, "SigCgt: %llx", &caught);
    if (in)
        fclose(in);
    return caught >> (signal - 1) & 1;
}
