/* SPDX-License-Identifier: MIT */
/* The settings of an optimizer, in a table of options (base/option_rows.h) whose record
 * has a struct optimizer called `optimizer`. */
#ifndef RUN_OPTIMIZER_ROWS_H
#define RUN_OPTIMIZER_ROWS_H

#define OPTIMIZER_ROWS                                                                  \
    REAL("momentum", optimizer.momentum, 0, 0.9999, "momentum of sgd"),                 \
    REAL("beta1", optimizer.beta1, 0, 0.9999,                                           \
         "decay of the mean of gradients, of adam and adamw"),                          \
    REAL("beta2", optimizer.beta2, 0, 0.999999,                                         \
         "decay of the mean of squares, of adam and adamw"),                            \
    REAL("epsilon", optimizer.epsilon, 0, 1,                                            \
         "added to the divisor, of adam, adamw and adagrad"),                           \
    REAL("beta", optimizer.beta, 0, 1e6,                                                \
         "ftrl: the larger, the smaller are the first steps"),                          \
    REAL("l1", optimizer.l1, 0, 1e6,                                                    \
         "ftrl: the gain that a weight needs to differ from 0")

#endif
