/* SPDX-License-Identifier: MIT */
/* Rows of a table of options, for a file that defines AT(field), a field's offset. */
#define INT(name, at, low, high, help) {name, OPTION_INT, AT(at), low, high, NULL, help}
#define BYTES(name, at, low, high, help)                                                 \
    {                                                                                    \
        name, OPTION_BYTES, AT(at), low, high, NULL, help                                \
    }
#define REAL(name, at, low, high, help) {name, OPTION_REAL, AT(at), low, high, NULL, help}
#define RATE(name, at, low, high, help) {name, OPTION_RATE, AT(at), low, high, NULL, help}
#define SECONDS(name, at, low, high, help)                                               \
    {name, OPTION_SECONDS, AT(at), low, high, NULL, help}
#define FLAG(name, at, help) {name, OPTION_BOOL, AT(at), 0, 0, NULL, help}
#define CHOICE(name, at, choices, help) {name, OPTION_CHOICE, AT(at), 0, 0, choices, help}
#define TEXT(name, at, help) {name, OPTION_TEXT, AT(at), 0, 0, NULL, help}
