/* SPDX-License-Identifier: MIT */
/* Stdin of one process for many: it is decompressed and cut into chunks of whole lines
 * here, and parsed by the processes that are given them. A chunk is the same as the one
 * that a reader of this process would take next (stdin.c); with it goes the number of
 * lines before it, so that messages of all processes have the lines' numbers in the whole
 * input. */
#include "data/reader.h"

struct data_cutter {
    struct data_options options;
    struct log log;
    struct input input;
};

descant_status data_cut_open(struct data_cutter **out, const struct data_options *options)
{
    static const char *const paths[] = {"-"};
    struct data_cutter *cutter = memory_take(sizeof *cutter);

    if (!cutter)
        return log_fail(options->log, DESCANT_MEMORY, "no memory to read stdin");
    cutter->log = options->log ? *options->log : (struct log){.rank = -1};
    cutter->options = (struct data_options){
        .paths = paths, .n_paths = 1, .chunk_bytes = options->chunk_bytes,
        .stopped = options->stopped, .of = options->of, .log = &cutter->log};
    descant_status status = input_init(&cutter->input, &cutter->options);
    if (status != DESCANT_OK) {
        data_cut_close(cutter);
        return status;
    }
    *out = cutter;
    return DESCANT_OK;
}

enum data_got data_cut(struct data_cutter *cutter, struct data_text *text,
                       descant_status *status)
{
    struct lines lines;
    uint64_t chunk;
    enum data_got got = stdin_chunk(&cutter->input, &lines, &chunk, status);

    if (got == DATA_BLOCK)
        *text = (struct data_text){lines.at, (size_t)(lines.end - lines.at),
                                   cutter->input.lines};
    return got;
}

void data_cut_close(struct data_cutter *cutter)
{
    if (!cutter)
        return;
    input_fini(&cutter->input);
    memory_give(cutter);
}

enum data_got given_chunk(struct input *in, uint64_t chunk, struct lines *lines,
                          descant_status *status)
{
    const struct data_options *o = in->options;
    struct data_text text = {0};

    do
        *status = o->fetch(o->fetch_of, chunk, &text);
    while (*status == DESCANT_TIMEOUT && !(o->stopped && o->stopped(o->of)));
    if (*status != DESCANT_OK)
        return DATA_FAILED;
    in->given_text = text.at;
    in->lines = text.lines;
    *lines = (struct lines){text.at, text.at + text.n, chunk == 0};
    return DATA_BLOCK;
}
