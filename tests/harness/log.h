/* SPDX-License-Identifier: MIT */
/* The log of a run, as far as it is written: a line of JSON for each thing that has
 * happened. */
#ifndef HARNESS_LOG_H
#define HARNESS_LOG_H

extern char log_file[96];

/* The key's value in the last line of the kind that has it; -1: none has. */
double logged(const char *kind, const char *key);
/* The sum of all such values, and how many there are. */
double summed(const char *kind, const char *key, int *lines);
/* Waits until logged gives so much. */
void wait_logged(const char *kind, const char *key, double least);
/* Lines of any file that have the text; 0 where there is no such file. */
int lines_with(const char *path, const char *text);

#endif
