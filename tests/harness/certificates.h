/* SPDX-License-Identifier: MIT */
/* Certificates for tests, by libcrypto, as files of the test's folder. */
#ifndef HARNESS_CERTIFICATES_H
#define HARNESS_CERTIFICATES_H

/* Makes NAME.crt and NAME.key, signed by another one of these, or, NULL, by itself as an
 * authority; for "host" and 127.0.0.1, valid for so many days from now on: below 0, its
 * last day was so long ago. */
void make_certificate(const char *name, const char *signer, int days);
/* NAME.key, encrypted from now on. */
void lock_key(const char *name, const char *password);

#endif
