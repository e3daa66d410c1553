/* SPDX-License-Identifier: MIT */
/* Certificates of version 3, with keys of P-256. */
#include "harness/certificates.h"
#include "harness/folder.h"
#include "harness/suite.h"

#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>

static FILE *open_file(const char *name, const char *ending, const char *how)
{
    char file[100];
    snprintf(file, sizeof file, "%s.%s", name, ending);
    FILE *opened = fopen(in_folder(file), how);
    ck_assert_ptr_nonnull(opened);
    return opened;
}

static EVP_PKEY *read_key(const char *name)
{
    FILE *from = open_file(name, "key", "r");
    EVP_PKEY *key = PEM_read_PrivateKey(from, NULL, NULL, NULL);
    fclose(from);
    ck_assert_ptr_nonnull(key);
    return key;
}

/* password: NULL, none. */
static void write_key(const char *name, EVP_PKEY *key, const char *password)
{
    FILE *to = open_file(name, "key", "w");
    ck_assert(PEM_write_PrivateKey(to, key, password ? EVP_aes_128_cbc() : NULL, NULL, 0,
                                   NULL, (void *)(uintptr_t)password));
    ck_assert_int_eq(fchmod(fileno(to), 0600), 0);
    fclose(to);
}

void lock_key(const char *name, const char *password)
{
    EVP_PKEY *key = read_key(name);
    write_key(name, key, password);
    EVP_PKEY_free(key);
}

static void extend(X509 *made, X509 *signer, int nid, const char *value)
{
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, signer, made, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    ck_assert_ptr_nonnull(extension);
    ck_assert(X509_add_ext(made, extension, -1));
    X509_EXTENSION_free(extension);
}

void make_certificate(const char *name, const char *signer, int days)
{
    static int serial;
    const long day_s = 24 * 3600;
    EVP_PKEY *key = EVP_EC_gen("P-256"), *signing = key;
    X509 *made = X509_new(), *authority = made;
    ck_assert(key && made);
    if (signer) {
        FILE *from = open_file(signer, "crt", "r");
        authority = PEM_read_X509(from, NULL, NULL, NULL);
        fclose(from);
        signing = read_key(signer);
        ck_assert_ptr_nonnull(authority);
    }
    X509_set_version(made, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(made), ++serial);
    X509_gmtime_adj(X509_getm_notBefore(made), -100 * day_s);
    X509_gmtime_adj(X509_getm_notAfter(made), days * day_s);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(made), "CN", MBSTRING_ASC,
                               (const unsigned char *)name, -1, -1, 0);
    X509_set_issuer_name(made, X509_get_subject_name(authority));
    X509_set_pubkey(made, key);
    extend(made, authority, NID_basic_constraints,
           signer ? "critical,CA:FALSE" : "critical,CA:TRUE");
    extend(made, authority, NID_subject_alt_name, "DNS:host,IP:127.0.0.1");
    ck_assert(X509_sign(made, signing, EVP_sha256()));

    FILE *to = open_file(name, "crt", "w");
    ck_assert(PEM_write_X509(to, made));
    fclose(to);
    write_key(name, key, NULL);
    if (signer) {
        X509_free(authority);
        EVP_PKEY_free(signing);
    }
    X509_free(made);
    EVP_PKEY_free(key);
}
