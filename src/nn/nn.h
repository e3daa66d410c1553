/* SPDX-License-Identifier: MIT */
/* Models, their gradients, and the optimizers. No threads and no I/O: a caller's thread
 * brings its own `struct work` (activations and gradients of one batch), and the
 * parameters, which may be changing under it (Hogwild). The dense parameters are one flat
 * vector; a layer is a view of it. The embedding tables are another, and are updated row
 * by row. */
#ifndef NN_H
#define NN_H

#include "base/base.h"
#include "base/examples.h"

enum { NN_MAX_LAYERS = 16 };

enum model_kind {
    MODEL_LINEAR,   /* one weight a table row (width 1), one a dense feature, one bias */
    MODEL_FM,       /* the same and a vector of `width` a row: rows of 1 + width floats */
    MODEL_DLRM,     /* bottom MLP, a table a field with sum pooling, pairwise dots, top
                       MLP */
    MODEL_MLP       /* dense features, hidden layers, softmax or logistic */
};

struct model_shape {
    enum model_kind kind;
    int n_dense, n_fields;
    /* 1: logistic; 2 and more: softmax, only mlp */
    int n_classes;
    /* of each dlrm table; of the one table of linear, fm */
    size_t rows;
    /* rows is 0, and each id has a row of its own: number `table << 32 | id`. The tables are
       then none of the model's floats: passes are over blocks (work_on_blocks) */
    bool grows;
    /* id i is row i mod rows; else row = id * rows >> 32 */
    bool plain_ids;
    int width;                              /* fm, dlrm */
    /* dlrm: hidden sizes after n_dense, before width */
    int n_bottom, bottom[NN_MAX_LAYERS];
    /* dlrm, mlp: hidden sizes before the outputs */
    int n_top, top[NN_MAX_LAYERS];
};

/* A view of the flat vector (or of the tables). */
struct tensor {
    char name[64];              /* "bottom.0.weight", as PyTorch would call it */
    int n_dims;
    size_t dims[2];             /* weight: (out, in) */
    size_t at, n;               /* floats */
};

struct model;                   /* constant once created: shared by all threads */

/* INVALID with a message for a shape that cannot be. log may be NULL. */
descant_status model_create(struct model **out, const struct model_shape *shape,
                            const struct log *log);
void model_destroy(struct model *model);
const struct model_shape *model_shape(const struct model *model);
int model_outputs(const struct model *model);                /* n_classes */
size_t model_floats(const struct model *model);              /* of the dense vector */
size_t model_table_floats(const struct model *model); /* of all tables together, or 0 */
size_t model_table_rows(const struct model *model); /* of all tables together, or 0 */
/* Above each row's number, also where tables grow and have no rows that can be counted */
uint64_t model_rows_end(const struct model *model);
int model_table_width(const struct model *model);            /* floats of a row, or 0 */
/* the dense vector's */
const struct tensor *model_tensors(const struct model *model, size_t *n);
const struct tensor *model_tables(const struct model *model, size_t *n);
/* Of matrix products, forward and backward, an example. */
double model_flops(const struct model *model);

/* The same seed gives the same bits. The tables in parts, so that several may share the
 * work: rows [from, from + n). */
void model_init(const struct model *model, float *w, uint64_t seed);
void model_init_tables(const struct model *model, float *tables, size_t from, size_t n,
                       uint64_t seed);
/* How rows begin: uniform in [-spread, spread), but for the first `zeros` floats. */
struct rows_born {
    size_t zeros;
    double spread;
};
struct rows_born rows_born_of(enum model_kind kind, size_t row_width);
struct rows_born model_rows_born(const struct model *model);
/* linear, fm: the score that an example without features has; others leave w alone. */
void model_set_intercept(const struct model *model, float *w, double score);

/* Gradients of table rows, one entry a row touched by the batch (an id that comes twice
 * comes once here, summed). */
struct row_grads {
    size_t n;
    int width;
    int n_weights;              /* of linear and fm: the first float is a weight, others a
                                   vector */
    const uint64_t *rows;       /* (n): row of all tables together: floats from rows[k] *
                                   width */
    const float *grads;         /* (n, width) */
    const float *inputs;        /* (n, 2) by work_ahead: the batch's ids of the row, and
                                   the sum of their values' squares */
};

/* For each thread that trains: numbers too small to matter become 0 instead of slow. */
void nn_thread_init(void);

/* Once there is a model that multiplies: whether the BLAS is one whose products threads
 * must not make at once: they wait for each other. */
bool nn_products_take_turns(void);

/* Before so many threads use a model: the memory that its products need beside their own
 * work's. */
descant_status model_reserve(const struct model *model, int threads,
                             const struct log *log);
/* c (m, n) = a b, or with either turned, as the models multiply; rows lie without gaps.
 */
void nn_multiply(bool a_turned, bool b_turned, int m, int n, int k, const float *a,
                 const float *b, float *c);

/* One thread's: activations and gradients for up to max_batch examples. A batch that it
 * is given has 1 to max_batch examples of the model's shape: readers make no other block,
 * and the shape of files was compared with the model's when they were opened
 * (evaluate_fits, feed_shape). */
struct work;

descant_status work_create(struct work **out, const struct model *model, size_t max_batch,
                           const struct log *log);
void work_destroy(struct work *work);

/* Scores: logits, (n, outputs). */
void model_scores(struct work *work, const float *w, const float *tables,
                  const struct examples *batch, float *scores);

/* Forward and backward. g becomes the gradient of the mean loss over the batch (all of it
 * is written), the rows' are had by work_rows until the next call. Returns the summed
 * loss, which is NaN or infinite if a score or a label was bad. scores may be NULL. */
double model_gradient(struct work *work, const float *w, const float *tables,
                      const struct examples *batch, float *g, float *scores);
const struct row_grads *work_rows(const struct work *work);

/* Before a pass over that batch: work_rows has its rows, without gradients, but with
 * their inputs, which an optimizer wants that scales rows by them (ROWS_FTRL). False: no
 * memory. */
bool work_ahead(struct work *work, const struct examples *batch);

/* Calls in the middle of a pass, for rows that come from elsewhere and go there. */
struct work_turns {
    void *of;
    /* The batch's rows, where a pass first needs them. NULL: they are not to be had, and
     * what the pass computes means nothing. */
    const float *(*needed)(void *of);
    /* model_gradient: work_rows has their gradients, and what is left of the pass does
     * without rows, so work_ahead may be called for the next batch. Not after a loss that
     * is not finite. */
    void (*done)(void *of);
};

/* Where the tables are elsewhere: from here on `tables` of model_scores and
 * model_gradient are the batch's rows alone, (n, width), as work_rows names them after
 * work_ahead, which comes before each pass. There are no inputs. With turns, `needed`
 * gives what `tables` would be. */
void work_on_blocks(struct work *work, const struct work_turns *turns);

/* The rows that the last model_gradient has gradients for, each once, or that the last
 * model_sgd has changed, as often as the batch has them; until the next call. */
const uint64_t *work_touched(const struct work *work, size_t *n);

/* The same and one step of plain SGD in the same pass, w and tables changed in place; the
 * fastest way where momentum is 0. Returns the summed loss. */
double model_sgd(struct work *work, float *w, float *tables, const struct examples *batch,
                 double lr, double l2, float *scores);

/* --- optimizers: the state belongs to the caller, and is zero at first --- */

enum optimizer_kind { OPTIMIZER_SGD, OPTIMIZER_ADAGRAD, OPTIMIZER_ADAM, OPTIMIZER_ADAMW,
                      OPTIMIZER_FTRL };
enum row_optimizer_kind { ROWS_SGD, ROWS_ADAGRAD, ROWS_ROWWISE_ADAGRAD, ROWS_FTRL };

struct optimizer {
    enum optimizer_kind kind;
    enum row_optimizer_kind rows;
    double momentum;                /* sgd */
    double beta1, beta2, epsilon;   /* adam, adamw; epsilon also adagrad */
    double l2;                      /* added to the gradient; adamw: decoupled. Dense part
                                       only, but for ftrl, whose it is of rows, too */
    double beta, l1;                /* ftrl */
};

size_t optimizer_floats(const struct optimizer *o, size_t n); /* state of n floats */
size_t optimizer_row_floats(const struct optimizer *o, size_t n_rows, int width);

/* One step of w by g. step counts from 1 (adam's correction). */
void optimizer_step(const struct optimizer *o, float *w, const float *g, float *state,
                    size_t n, double lr, uint64_t step);

/* The same of n floats of a model of `all`, from `at` on: w and g are the piece's, state
 * is all's. */
struct optimizer_piece {
    float *w;
    const float *g;
    float *state;
    size_t at, n, all;
};
void optimizer_step_piece(const struct optimizer *o, const struct optimizer_piece *piece,
                          double lr, uint64_t step);

/* ROWS_FTRL's first half: the rows' inputs go into their scales. Returns the sum over the
 * batch of squares of the inputs, each in its row's scale, which says by how much a step
 * of all rows moves the scores. Others do nothing, and return 0. */
double optimizer_rows_meet(const struct optimizer *o, float *tables, float *state,
                           const struct row_grads *rows);

/* One step of the rows. state is the whole tables' (row r's share by its number). */
void optimizer_rows_step(const struct optimizer *o, float *tables, float *state,
                         const struct row_grads *rows, double lr);

#endif
