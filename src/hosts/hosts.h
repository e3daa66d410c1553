/* SPDX-License-Identifier: MIT */
/* descant run: the ranks of a job as processes on hosts, over ssh or here, each started
 * again by itself when it dies. Its files call each other downwards:
 *
 *   run.c           the loop: processes, signals, restarts
 *   output.c        the ranks' output, line by line
 *   script.c        the orders for a rank's host
 *   layout.c        the host of each rank, and the place where they meet
 *   restarts.c      the rule by which a rank is started again: no clock, no processes
 *   secret.c        a line that only the job's ranks know */
#ifndef HOSTS_H
#define HOSTS_H

#include "base/base.h"
#include "link/secret.h"

enum { HOSTS_RANKS = 4096, HOST_NAME = 256, HOSTS_ADDRESS = 512, HOSTS_ID = 17 };
enum { HOSTS_WORDS = 64 };      /* of --ssh */

#define RESTARTS_AUTO (-1)      /* as restarts.c says */

struct hosts_options {
    const char *hosts;          /* a list (base.h, hostlist.c); NULL: this host */
    int64_t each;               /* ranks on each of them */
    int64_t port;               /* of rank 0; 0: a random one, and on one host none */
    double restarts;            /* of each rank in a row, or RESTARTS_AUTO */
    const char *secret;         /* a file; NULL: the run makes one */
    const char *ssh;            /* words, before the host and the command line for it */
    const char *env;            /* variables for ranks over ssh: names with commas */
    bool insecure;              /* no secret */
    bool plain;                 /* lines of ranks as they are, without [RANK] */
    char **command;             /* ends with NULL */
};

/* Returns the exit status: 0 once all ranks have ended with 0; the status of the first
 * rank that was given up; 128 + the signal after SIGINT or SIGTERM; 2 for bad options. */
int hosts_run(const struct hosts_options *options, FILE *out, FILE *err);

/* --- layout.c --- */

struct host {
    char name[HOST_NAME];       /* as given */
    bool here;                  /* no ssh */
};

struct layout {
    struct host *hosts;
    int n_hosts, each, n;       /* rank r is on host r / each */
    bool secret;                /* the address is to name one */
    char id[HOSTS_ID];          /* of this run */
    char address[HOSTS_ADDRESS];
};

/* chance: another number for each run. here: this host's name. INVALID, which is logged:
 * the options are wrong. */
descant_status layout_init(struct layout *layout, const struct hosts_options *options,
                           uint64_t chance, const char *here, const struct log *log);
void layout_fini(struct layout *layout);

/* --- restarts.c --- */

enum rank_end {
    RANK_DONE,          /* status 0 */
    RANK_REFUSES,       /* status 2: its options are wrong */
    RANK_FAILED,        /* another one */
    RANK_KILLED,        /* by a signal */
    RANK_LOST,          /* ssh has lost its host, or not reached it */
    RANK_NO_COMMAND     /* the host cannot run it */
};

struct restarts {
    int most;           /* in a row; RESTARTS_AUTO */
    int in_row, failed; /* since it ran for a minute: restarts, and those after FAILED */
    bool ran;           /* the command has started once */
};

/* status: as of a shell, from 128 on for a signal. */
enum rank_end rank_end(int status, bool over_ssh);
/* True: it refuses the options, which no other start makes better, and the run is to end.
 * Before restarts_again, which then says false. */
bool restarts_never(const struct restarts *r, enum rank_end end, uint64_t ran_ns);
/* True: it is to be started again in *wait_ns. */
bool restarts_again(struct restarts *r, enum rank_end end, uint64_t ran_ns,
                    uint64_t *wait_ns);

/* --- secret.c --- */

/* The line of the file, or, where file is NULL, a new one. */
descant_status secret_line(char line[SECRET_LINE + 1], const char *file,
                           const struct log *log);

/* --- script.c --- */

struct script {
    const struct layout *layout;
    const struct hosts_options *options;
    const char *secret;         /* a line, with or without its end; NULL: none */
    const char *folder;         /* to be in */
    int rank;
    bool again;                 /* processes of an earlier start are to be killed */
    bool input;                 /* the shell has the command's input as SCRIPT_INPUT */
};

/* The argument of sh -c by which a shell reads a script and executes it. Its only
 * quotation marks are ", so that it can stand between ''. */
enum { SCRIPT_READER = 64, SCRIPT_INPUT = 9 /* a shell's words name one digit */ };
extern const char script_reader[SCRIPT_READER];
/* Returns the script, which the caller frees. NULL: no memory. */
char *script_text(const struct script *script, size_t *length);

/* --- output.c --- */

enum { LINE_MOST = 16 << 10 };  /* longer lines are cut */

struct output_lines {
    FILE *to;
    int rank;                   /* -1: without [RANK] */
    bool returned;              /* the last byte was a carriage return */
    size_t n;
    char line[LINE_MOST];
};

void output_init(struct output_lines *lines, FILE *to, int rank);
void output_put(struct output_lines *lines, const char *bytes, size_t n);
void output_end(struct output_lines *lines);    /* a last line without an end gets one */

#endif
