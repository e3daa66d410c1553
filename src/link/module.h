/* SPDX-License-Identifier: MIT */
/* Modules: shared objects that are loaded when a job asks for them. Only a module links
 * its library, which not every machine has. */
#ifndef LINK_MODULE_H
#define LINK_MODULE_H

#include <stdbool.h>
#include <stddef.h>

struct log;

struct link_module {
    const char *file;           /* its name, without a folder */
    const char *library;        /* the library that it links, for messages */
    const char *package;        /* the target by which make builds it */
    const char *wanted_by;      /* for messages: the address mpi */
    const char *variable;       /* of the environment: where it lies, if it is set */
    const char *symbol;         /* its only one: a table whose first field is an int, */
    int version;                /* this one */
    int flags;                  /* of dlopen */
    const char *advice;         /* after a failure of dlopen, or "" */
};

/* The module's file, where there is one. */
bool module_find(const struct link_module *module, char *path, size_t room);
/* Where there is no module: writes its name, the folders searched, and advice. */
const char *module_missing(const struct link_module *module, char *text, size_t room);
/* Returns the module's table, which stays loaded until the process ends. NULL:
 * UNSUPPORTED, with the reason logged. */
const void *module_load(const struct link_module *module, const struct log *log);

#endif
