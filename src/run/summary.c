/* SPDX-License-Identifier: MIT */
/* All values of a summary begin in the same column. */
#include "run/summary.h"

void summary_row(FILE *out, const char *name, double value, const char *format)
{
    char text[64];
    if (!isfinite(value))
        return;
    snprintf(text, sizeof text, format, value);
    fprintf(out, "  %-26s %s\n", name, text);
}

void summary_held_out(FILE *out, const struct held_out *h, bool classes)
{
    summary_row(out, "held-out loss", h->loss, "%.5f");
    if (!classes) {
        summary_row(out, "held-out NE", h->entropy, "%.5f");
        summary_row(out, "held-out AUC", h->auc, "%.5f");
        summary_row(out, "held-out calibration", h->calibration, "%.4f");
    }
    summary_row(out, "held-out accuracy", h->accuracy, "%.4f");
}

void summary_lags(FILE *out, const struct lags *l)
{
    summary_row(out, "staleness, mean", l->mean, "%.2f versions");
    if (isfinite(l->mean))
        summary_row(out, "staleness, most", l->most, "%.0f versions");
    summary_row(out, "refused as stale", (double)l->stale, "%.0f");
    summary_row(out, "refused for NaN or Inf", (double)l->not_finite, "%.0f");
}

/* The same keys in the logs of descant bsp and of the plan bsp. */
void lags_json(struct json *json, const struct lags *l)
{
    json_real(json, "staleness_mean", l->mean);
    json_real(json, "staleness_max", l->most);
    json_int(json, "refused_stale", (int64_t)l->stale);
    json_int(json, "refused_not_finite", (int64_t)l->not_finite);
}
