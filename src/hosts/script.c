/* SPDX-License-Identifier: MIT */
/* The orders for a rank's host. A rank is a shell, here or over ssh, that reads this
 * script from its standard input and executes it line by line. So the words that all
 * users of the host can see are only a loop that reads, and ssh, a login shell or a
 * test's script between need to quote nothing.
 *
 * The last line starts the command in a session of its own, whose number is that of its
 * process group, and waits for it. From then on standard input brings names of signals
 * for the group, a line each. Its end is the end of the run, or of the connection:
 * SIGTERM, and SIGKILL 10 s later. A shell in the same group, the watcher, waits for that
 * end. The watcher is not the command's child, or the command would find a child that it
 * has not started. SIGKILL to the group ends the watcher, too.
 *
 * 1. When the command ends, the first shell kills the rest of the group, then processes
 *    that have left the group and still have this rank's DESCANT_RUN in their
 *    environment. Without the first shell the watcher kills the group.
 * 2. A secret is a file in memory that only its owner can read. The shell that kills the
 *    group removes the file first. Its name has the run's number, which cannot be guessed
 *    beforehand.
 * 3. A rank that is started again first kills the processes of its last start: the host
 *    may not have noticed yet that the connection is lost.
 * 4. The command's standard input is empty, or what the shell has as SCRIPT_INPUT, which
 *    no process but the command keeps open beyond it. Its output goes where the shell's
 *    goes.
 *
 * A line of the script has no line end within: in a quoted word that is $_dn. A host
 * needs a POSIX shell, setsid, and, for processes that have left the group, grep -z. */
#include "hosts/hosts.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

const char script_reader[SCRIPT_READER] =
    "while IFS= read -r _dl; do eval \"$_dl\"; done";

static void quote(FILE *out, const char *text)
{
    fputc('\'', out);
    for (; *text; text++)
        if (*text == '\'')
            fputs("'\\''", out);
        else if (*text == '\n')
            fputs("'\"$_dn\"'", out);
        else
            fputc(*text, out);
    fputc('\'', out);
}

static void export(FILE *out, const char *name, const char *value)
{
    fprintf(out, "export %s=", name);
    quote(out, value);
    fputc('\n', out);
}

static void export_number(FILE *out, const char *name, int value)
{
    fprintf(out, "export %s=%d\n", name, value);
}

static bool has_name(const char *list, const char *name, size_t n)
{
    for (const char *at = list; at && *at; at += *at == ',') {
        size_t length = strcspn(at, ",");
        if (length == n && strncmp(at, name, n) == 0)
            return true;
        at += length;
    }
    return false;
}

/* Adds this process's variables that are Descant's own or were asked for. */
static void export_environment(FILE *out, const char *wanted)
{
    static const char own[] = "DESCANT_JOB,DESCANT_RUN,DESCANT_SEGMENT,DESCANT_MODULE,"
                              "DESCANT_MODULES";
    for (char **at = environ; *at; at++) {
        size_t n = strcspn(*at, "=");
        char name[128];
        bool passed = strncmp(*at, "DESCANT_", 8) == 0 && !has_name(own, *at, n);
        if ((!passed && !has_name(wanted, *at, n)) || n >= sizeof name || !(*at)[n])
            continue;
        snprintf(name, sizeof name, "%.*s", (int)n, *at);
        export(out, name, *at + n + 1);
    }
}

/* The definition of _dk, which kills all processes with this rank's DESCANT_RUN until
 * there is none, ten times at most: a killed process stays for a moment. */
static const char killer[] =
    "_dk() { for _di in 1 2 3 4 5 6 7 8 9 10; do "
    "_dp=$(grep -lsxz \"DESCANT_RUN=$_dr\" /proc/[0-9]*/environ); "
    "[ -n \"$_dp\" ] || return 0; "
    "for _dq in $_dp; do _dq=${_dq#/proc/}; kill -s KILL \"${_dq%/environ}\"; done; "
    "sleep 0.05 || sleep 1; done 2>/dev/null; }\n";

/* Prints the failure, and ends with the status of a command that cannot be started. */
static void write_refusal(FILE *out, const char *text)
{
    fputs(" || { echo ", out);
    quote(out, text);
    fputs(" >&2; exit 126; }\n", out);
}

static void write_needs(FILE *out, const struct script *s)
{
    const struct host *host = &s->layout->hosts[s->rank / s->layout->each];
    char text[PATH_MAX + HOST_NAME + 128];

    fputs("cd ", out);
    quote(out, s->folder);
    snprintf(text, sizeof text,
             "descant run: %s has no folder %s; start the run in one that all hosts have",
             host->name, s->folder);
    write_refusal(out, text);
    fputs("command -v setsid >/dev/null", out);
    snprintf(text, sizeof text, "descant run: %s has no setsid; it is in util-linux",
             host->name);
    write_refusal(out, text);
}

static void write_variables(FILE *out, const struct script *s)
{
    const struct layout *l = s->layout;

    if (!l->hosts[s->rank / l->each].here)
        export_environment(out, s->options->env);
    export_number(out, "RANK", s->rank);
    export_number(out, "WORLD_SIZE", l->n);
    export_number(out, "LOCAL_RANK", s->rank % l->each);
    export_number(out, "LOCAL_WORLD_SIZE", l->each);
    if (!s->secret) {
        export(out, "DESCANT_JOB", l->address);
        return;
    }
    fputs("_ds=/dev/shm/descant-run-$_dr; rm -f \"$_ds\"; "
          "(umask 077; set -C; echo ", out);
    fwrite(s->secret, 1, strcspn(s->secret, "\n"), out);
    fputs(" >\"$_ds\")", out);
    write_refusal(out, "descant run: the secret cannot be written into /dev/shm");
    fputs("export DESCANT_JOB=", out);
    quote(out, l->address);
    fputs(",secret=$_ds\n", out);
}

#define CLOSE_INPUT "9<&-"
#define TAKE_INPUT " <&9 " CLOSE_INPUT
_Static_assert(SCRIPT_INPUT == 9, "as in these words");

/* The shell's own messages, such as "Killed", are dropped: they would end it when its
 * output is no longer read. */
static void write_command(FILE *out, const struct script *s)
{
    const char *remove = s->secret ? "rm -f \"$_ds\"; " : "";

    fprintf(out,
            "exec 3<&0 4>&1 5>&2 </dev/null 2>/dev/null; "
            "_dg=$(DESCANT_RUN=$_dr _ds=$_ds setsid sh -c '"
            "echo $$; exec >&4 2>&5 4>&- 5>&-; "
            "((trap \"\" HUP INT TERM; "
            "while read -r _di; do kill -s \"$_di\" -- -$$; done; "
            "kill -s TERM -- -$$; sleep 10; %skill -s KILL -- -$$) <&3 3<&-%s &); "
            "exec 3<&-; unset _ds; exec \"$@\"%s' sh",
            remove, s->input ? " " CLOSE_INPUT : "", s->input ? TAKE_INPUT : "");
    for (char **word = s->options->command; *word; word++) {
        fputc(' ', out);
        quote(out, *word);
    }
    fprintf(out,
            "); _de=$?; [ -z \"$_dg\" ] || kill -s KILL -- \"-$_dg\"; "
            "%s_dk; exit $_de\n",
            remove);
}

char *script_text(const struct script *s, size_t *length)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, length);

    if (!out)
        return NULL;
    fprintf(out, "_dn=$(printf '\\nx'); _dn=${_dn%%x}; _dr=%s-%d\n%s", s->layout->id,
            s->rank, killer);
    if (s->again)
        fputs("_dk\n", out);
    write_needs(out, s);
    write_variables(out, s);
    write_command(out, s);
    bool good = !ferror(out);
    if (fclose(out) == 0 && good)
        return text;
    free(text);
    return NULL;
}
