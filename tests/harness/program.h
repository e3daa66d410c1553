/* SPDX-License-Identifier: MIT */
/* The program descant, called as a function. The words of its line are told apart by
 * blanks. */
#ifndef HARNESS_PROGRAM_H
#define HARNESS_PROGRAM_H

#include "cli/cli.h"

#include <sys/types.h>

extern char *out_text, *err_text;

/* Runs in this process, and returns its exit status. Its words, and those of what it
 * forks, are in out_text and err_text. */
int program(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same, but its words are in `said`. */
int ask(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Runs in a process of its own, whose words come to said_file. */
pid_t program_aside(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
