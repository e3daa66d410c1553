/* SPDX-License-Identifier: MIT */
/* For the files of nn: a model's layout, a thread's work, and the four parts every model
 * is made of: stacks of layers, rows of tables, a loss, and a sink for gradients. */
#ifndef PARTS_H
#define PARTS_H

#include "nn/loops.h"
#include "nn/nn.h"

/* Rows of a batch, ld floats apart. at may be NULL: not there. */
struct matrix {
    float *at;
    size_t ld;
};

/* The same, only to be read. */
struct view {
    const float *at;
    size_t ld;
};

static inline struct view view_of(struct matrix m)
{
    return (struct view){m.at, m.ld};
}

/* Rows start on whole vectors. */
static inline size_t room_of(size_t width)
{
    return (width + LANES - 1) / LANES * LANES;
}

/* y = relu(x W' + b) */
struct layer {
    int n_in, n_out;
    size_t weight, bias;        /* into the flat vector: (n_out, n_in), (n_out) */
    bool relu;
};

struct stack {
    int n;
    struct layer layers[NN_MAX_LAYERS + 1];
};

struct model {
    const struct model_kind_table *kind;
    const struct loops *loops;
    struct model_shape shape;
    struct stack bottom, top;   /* all but dlrm: top alone */
    size_t n_floats, n_tensors, n_tables, n_rows;
    int row_width;
    struct tensor tensors[4 * (NN_MAX_LAYERS + 1)];
    struct tensor *tables;
};

struct params {
    const float *w, *tables;
};

/* Where gradients go: a step of SGD writes into the parameters themselves (alpha -lr,
 * beta 1 - lr l2), model_gradient into arrays of its own (1, 0). */
struct sink {
    float *w;                   /* w = beta w + alpha dW */
    float *rows;                /* rows[index[k]] += alpha d, k counting the batch's
                                   ids */
    const uint64_t *index;
    float alpha, beta;
};

struct work {
    const struct model *model;
    struct log log;
    size_t max_batch;
    struct matrix bottom[NN_MAX_LAYERS + 1], top[NN_MAX_LAYERS + 1]; /* layers' outputs */
    struct matrix bottom_d[NN_MAX_LAYERS + 1], top_d[NN_MAX_LAYERS + 1]; /* their
                                   gradients; the last of top_d first has the scores */
    float *column;              /* (widest) */
    struct matrix vectors;      /* dlrm: the vectors of each example; fm: sums */
    struct matrix top_in, top_in_d; /* dlrm: [bottom, dots], and its gradient */
    float *one, *turned;        /* dlrm: one example's gradients of vectors, and vectors
                                   turned */
    struct work_rows {
        size_t room;            /* ids */
        uint64_t *of_id;        /* (room + ROWS_AHEAD) row of each id of the batch */
        uint64_t *slot;         /* (room + ROWS_AHEAD) its place in `grads` */
        uint64_t *touched;      /* (room) */
        uint32_t *hash;         /* (hash_room) slot + 1, or 0: free */
        size_t hash_room;       /* a power of two, at least 2 room */
        float *grads;           /* (room, row width) */
        float *inputs;          /* (room, 2) */
        float *products;        /* fm: (room, width) */
    } rows;
    struct row_grads found;
    bool blocks;                /* tables are a batch's rows alone (work_on_blocks) */
    struct work_turns turns;    /* all NULL: none */
    bool finite;                /* the loss of this pass */
    bool ahead;                 /* `found` is of the batch that the next pass has */
    const uint64_t *changed;    /* (n_changed) rows, by the last pass */
    size_t n_changed;
};

/* A stack's forward pass, to go back through. */
struct pass {
    const float *w;
    struct view x;
    const struct matrix *y;     /* layers' outputs */
    const struct matrix *d;     /* their gradients; the caller fills the last one */
    size_t n;
    const struct sink *sink;
};

/* A kind of model. Each slot's contract: */
struct model_kind_table {
    const char *name;
    /* NULL, or what is wrong with the shape */
    const char *(*check)(const struct model_shape *shape);
    /* layers, tensors, tables, by model_add_... */
    void (*lay_out)(struct model *model);
    /* NULL, or the kind's own buffers; false: no memory (what was taken stays in work) */
    bool (*reserve)(struct work *work);
    /* scores (n, outputs). keep: what backward needs, too */
    void (*forward)(struct work *work, const struct params *p,
                    const struct examples *batch, struct matrix scores, bool keep);
    /* the last of top_d is the gradient of the scores */
    void (*backward)(struct work *work, const struct params *p,
                     const struct examples *batch, const struct sink *sink);
    /* products an example takes besides layers', forward and backward, counted as 2 each
     */
    double (*flops)(const struct model *model);
};

extern const struct model_kind_table kind_linear, kind_fm, kind_dlrm, kind_mlp;

/* --- model.c --- */

/* Lays hidden sizes and n_out after n_in, each layer with its tensors "name.0.weight",
 * ... */
void model_add_stack(struct model *model, struct stack *stack, const char *name, int n_in,
                     const int *hidden, int n_hidden, int n_out, bool last_relu);
void model_add_layer(struct model *model, struct stack *stack, const char *name, int n_in,
                     int n_out, bool relu);
/* layers of one output have loops of their own */
bool model_multiplies(const struct model *model);

/* --- blas.c --- */

/* Loads OpenBLAS, once. */
descant_status blas_init(const struct log *log);
/* So many threads can multiply at once; before that, at least. */
descant_status blas_reserve(int threads, const struct log *log);
/* c (m, n) = alpha a b + beta c, rows ld apart; a: (m, k), or (k, m) if turned, b: (k,
 * n), (n, k). */
void blas_sgemm(bool a_turned, bool b_turned, int m, int n, int k, float alpha,
                const float *a, int lda, const float *b, int ldb, float beta, float *c,
                int ldc);

/* --- layers.c --- */

/* y: a matrix for each layer's output; x: the first one's input. */
void stack_forward(const struct model *model, const struct stack *stack, const float *w,
                   struct view x, const struct matrix *y, size_t n);
/* Gradients of all outputs and biases, and dx, that of x, unless dx.at is NULL. weights:
 * theirs, too, each when its layer's d is still in the cache. */
void stack_backward(const struct work *work, const struct stack *stack,
                    const struct pass *pass, struct matrix dx, bool weights);
/* After that, where they have not been asked for: gradients of the weights. */
void stack_weights(const struct work *work, const struct stack *stack,
                   const struct pass *pass);

/* --- loss.c --- */

/* The summed loss of scores (n, outputs); scores become their gradient of the mean. */
double loss_and_gradient(struct matrix scores, size_t n, int outputs,
                         const float *labels);

/* --- rows.c --- */

size_t rows_count(const struct examples *batch);
/* Room for n ids; false: no memory, logged. */
bool rows_reserve(struct work *work, size_t n);
void rows_fini(struct work_rows *rows);
/* The row of each id. */
void rows_find(struct work *work, const struct examples *batch);
/* One slot for each row found, in work->found, all gradients zero. */
void rows_assign(struct work *work, size_t n_ids);
/* The factors of the rows that were found, into work->found. */
void rows_inputs(struct work *work, const struct examples *batch);
/* Each id's place among the rows that a pass reads: those of tables, or of a block. */
const uint64_t *rows_index(const struct work *work);
/* The ids of example i; index: rows_index, or rows.slot. */
struct bags rows_bags(const struct examples *batch, size_t i, const uint64_t *index);
/* Of example i: the place of its first id among the batch's. */
size_t rows_first(const struct examples *batch, size_t i);

/* --- work.c --- */

/* (max_batch, width), rows a whole number of vectors; false: no memory. */
bool work_matrix(const struct work *work, struct matrix *m, size_t width);
/* The rows that a forward pass reads: `tables`, or those of the turns. */
const float *work_tables(struct work *work, const float *tables);
/* Whether a backward pass computes the rows' gradients first, and others after them. */
bool work_rows_first(const struct work *work);
/* By a backward pass: the sink has all of the rows. */
void work_rows_done(struct work *work);

#endif
