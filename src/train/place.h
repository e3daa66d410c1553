/* SPDX-License-Identifier: MIT */
/* The place in the data of a run that is resumed: which chunks are done, and in which
 * files. */
#ifndef PLACE_H
#define PLACE_H

#include "train/board.h"

#include "descant.h"

/* A mark of a file's first `bytes` bytes: two files with the same mark begin alike. A
 * pipe or a device has no mark. */
struct file_mark {
    uint64_t bytes;             /* UINT64_MAX: it is no regular file */
    uint64_t hash;              /* of some at the begin and some at the end */
};

/* The mark of at most so many bytes. A file that cannot be read counts as no regular
 * file. */
struct file_mark file_mark(const char *path, uint64_t most);

/* The place of a run that goes on, as a checkpoint has it. at: the cursor, the data's end
 * as on the board, and the chunks below the cursor that are not done. */
enum { PLACE_HEAD = 2, MARK = 2 };
struct place {
    uint64_t at[PLACE_HEAD + BOARD_TODO];
    size_t n;
    struct metrics sums;        /* of the examples trained by then */
    uint64_t files[MARK * BOARD_FILES];     /* file_mark of each */
};

/* The place of a job that deals chunks, of which those of n ascending runs are done: sets
 * the cursor and the chunks that are not done. The end is left as it is. */
void place_of_runs(struct place *place, const struct descant_items *runs, size_t n);
/* The other way: returns how many runs, at most n + 1, of chunks below the cursor are
 * done, where the n chunks of todo are not. Sorts todo, and takes DATA_REST off it. */
size_t place_runs(uint64_t cursor, uint64_t *todo, size_t n, struct descant_items *runs);

/* A file that has been read to `was`, and has `is` bytes now. */
struct growth {
    uint64_t was, is;
    uint64_t whole;             /* of `was`: without a last line that had no end yet */
};
uint64_t whole_lines(const char *path, uint64_t was);

/* The rest that a resumed run has to do: every chunk below `next` is done, except the
 * chunks of `todo`. */
struct rest {
    struct metrics sums;
    uint64_t next, end;
    uint64_t *todo;             /* (BOARD_TODO) some with DATA_REST */
    size_t n_todo;
};

void rest_add(struct rest *rest, uint64_t chunk);

/* The same place where files of text have grown, with the chunks' present numbers. False:
 * there is no room for all chunks to do. */
bool rest_grow(struct rest *rest, const struct growth *files, size_t n,
               uint64_t chunk_bytes);

/* The same of one compressed file, which is read once: where its last chunk was cut is
 * not known, so the chunk before the place is done again. */
void rest_back(struct rest *rest);

#endif
