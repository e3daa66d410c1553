/* SPDX-License-Identifier: MIT */
/* For tests of ranks that are lied to: what becomes of a message of the rank that lies. */
#ifndef LIES_H
#define LIES_H

#include "ranks/ranks.h"

enum { LETTER_ROOM = 1 << 16 /* bytes of a message that is lied about, and some more */ };

struct letter {
    int from, to, tag;
    int times;                  /* sent so often; 0: it is lost */
    size_t bytes;
    unsigned char *p;           /* LETTER_ROOM bytes */
};

enum { LETTERS_KEPT = 8 };

/* Chance: bytes, each of which is read once. Without any nobody lies any more. */
struct lies {
    const uint8_t *bytes;
    size_t left;
    int size, liar;             /* of the job */
    size_t floats;
    unsigned skip;              /* letters that go as they are, until the next lie */
    struct letter kept[LETTERS_KEPT];   /* the last ones, as they were */
    unsigned char memory[LETTERS_KEPT][LETTER_ROOM];
    unsigned n_kept;
};

unsigned lies_next(struct lies *s);     /* byte; 0 where there is none */
/* context: struct lies. more: another letter that goes first, of no times unless it is
 * filled. */
void lies_alter(void *context, struct letter *letter, struct letter *more);

#endif
