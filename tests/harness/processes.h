/* SPDX-License-Identifier: MIT */
/* Processes of a test: their words, their ends, and what /proc tells of them. */
#ifndef HARNESS_PROCESSES_H
#define HARNESS_PROCESSES_H

#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>
#include <sys/wait.h>

extern char self[PATH_MAX];     /* this program; main calls find_self for it */
void find_self(void);

/* What processes say comes to a file, and from there into `said`. */
extern char said_file[96], said[1 << 16];

/* In the child *out is that file, and the signal comes when its parent ends. */
pid_t fork_saying(FILE **out, int signal_at_end);
void read_said(void);
void says(const char *text);                    /* the text is in `said` */
int times_said(const char *text);        /* so far */
void wait_said(const char *text, int times);    /* until it is there so often */

/* The exit status of a child, or 128 + its signal; the child may not take longer.
 * Reads what was said. */
int end_within(pid_t pid, int seconds);
int end_of(pid_t pid);

int children_of(pid_t parent, pid_t *pids, int most);   /* how many, up to most */
char state_of(pid_t pid);               /* as in /proc; 0: there is no such process */
void wait_asleep(pid_t pid);            /* until its first thread waits for something */
bool is_pending(pid_t pid, int number); /* that signal has not been delivered to it */
bool is_gone(pid_t pid);                /* there is none, or nobody has reaped it */
int threads_of(pid_t pid);
bool has_open(pid_t pid, const char *path);
void wait_file(const char *path);       /* until there is one of that name */
void *share_memory(size_t bytes);       /* zeros, which all later children share */

/* The process has a handler for the signal. */
bool catches(pid_t pid, int signal);

#endif
