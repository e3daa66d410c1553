/* SPDX-License-Identifier: MIT */
/* Text in HTML: a reader sees the bytes, and none of them is markup. */
#include "report/report.h"

static void put_byte(FILE *out, char c)
{
    switch (c) {
    case '&': fputs("&amp;", out); break;
    case '<': fputs("&lt;", out); break;
    case '>': fputs("&gt;", out); break;
    case '"': fputs("&quot;", out); break;
    case '\'': fputs("&#39;", out); break;
    default: fputc((unsigned char)c < ' ' || c == 127 ? ' ' : c, out);
    }
}

void report_text(FILE *out, const char *text)
{
    for (; *text; text++)
        put_byte(out, *text);
}

void report_list(FILE *out, const char *text)
{
    for (; *text; text++) {
        put_byte(out, *text);
        if (*text == ',')
            fputs("<wbr/>", out);
    }
}
