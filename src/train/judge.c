/* SPDX-License-Identifier: MIT */
/* Evaluations of the model that is trained: their figures, the best of them, and the end
 * of patience. The keeper runs them beside training, the main thread at the end. The best
 * loss and the number of evaluations since lie on the board, so that the next reporter
 * knows them when this one dies. */
#include "run/limits.h"
#include "train/monitor.h"

#define RELAXED memory_order_relaxed

bool judge_model(struct trainer *t, const float *w, int threads,
                 bool (*stopped)(void *of), struct held_out *h)
{
    struct evaluation e = {
        .model = t->model, .w = w, .tables = owned_tables_at(t), .batch = EVALUATE_BATCH,
        .data = config_held_out(t->options, &t->eval_paths, &t->log), .threads = threads,
        .stopped = stopped, .of = t, .log = &t->log,
    };

    e.data.said = &t->board->eval_said;
    descant_status status = evaluate(&e, h);
    if (status != DESCANT_OK)
        board_stop(t->board, STOP_FAILED, "%s", descant_last_error());
    return status == DESCANT_OK && !stopped(t);
}

/* Only the reporter writes these fields, so that four relaxed accesses are as good as
 * one. */
static struct patience patience_of(const struct board *b)
{
    return (struct patience){
        .any = atomic_load_explicit(&b->evals, RELAXED), .best = get(&b->eval_best),
        .best_at = atomic_load_explicit(&b->best_at, RELAXED),
        .worse = atomic_load_explicit(&b->evals_worse, RELAXED),
    };
}

static void put_patience(struct board *b, const struct patience *p)
{
    put(&b->eval_best, p->best);
    atomic_store_explicit(&b->best_at, p->best_at, RELAXED);
    atomic_store_explicit(&b->evals_worse, p->worse, RELAXED);
    atomic_store_explicit(&b->evals, p->any, RELAXED);
}

/* Where the best model could not be written, or had to wait, the model in the file stays
 * the best, and the next one that is better than that is written. A host
 * that takes over from the first one finds that one's best with its first checkpoint
 * (save.c). */
void judge_best(struct trainer *t, const struct held_out *h, struct place *place,
                const float *w)
{
    struct board *b = t->board;
    bool waits = !t->ended && save_waits(t);

    if (t->host > 0 && trainer_keeps_best(t) && !atomic_load(&b->kept) && !waits)
        save_checkpoint(t);
    struct patience was = patience_of(b), now = was;
    bool better = patience_judge(&now, h->loss, h->at);

    put_patience(b, &now);
    if (better && trainer_keeps_best(t) &&
        (waits || save_best(t, place, w) != DESCANT_OK)) {
        was.worse = 0;
        put_patience(b, &was);
        if (!waits)
            news_failed_checkpoint(t);
    } else if (better) {
        atomic_store(&b->best_kept, trainer_keeps_best(t));
    }
}

void judge_patience(struct trainer *t)
{
    struct patience p = patience_of(t->board);

    if (!patience_over(&p, t->options->patience))
        return;
    board_stop(t->board, STOP_EARLY,
               "no gain in %u evaluation%s; the best loss was %.5f, at %llu examples",
               p.worse, p.worse == 1 ? "" : "s", p.best, (unsigned long long)p.best_at);
    if (t->deals)               /* the others end once they have done what they have */
        descant_deal_end(t->job, 0);
}
