/* SPDX-License-Identifier: BSD-3-Clause */
#include "line.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ROOM_FOR_END 4 /* "}\n" */

static void put(struct line *line, char c)
{
    if (line->used < sizeof line->text - ROOM_FOR_END)
        line->text[line->used++] = c;
}

static void put_all(struct line *line, const char *text)
{
    for (; *text; text++)
        put(line, *text);
}

/* Printable, and no more than one line. */
static void put_quoted(struct line *line, const char *text)
{
    put(line, '"');
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            put(line, '\\');
        put(line, (unsigned char)*text < ' ' ? ' ' : *text);
    }
    put(line, '"');
}

static void put_key(struct line *line, const char *key)
{
    put_all(line, line->json ? ", " : " ");
    if (line->json)
        put_quoted(line, key);
    else
        put_all(line, key);
    put_all(line, line->json ? ": " : "=");
}

void line_begin(struct line *line, bool json, const char *experiment)
{
    line->json = json;
    line->used = 0;
    if (!json) {
        put_all(line, experiment);
        return;
    }
    put_all(line, "{\"experiment\": ");
    put_quoted(line, experiment);
}

void line_text(struct line *line, const char *key, const char *value)
{
    put_key(line, key);
    if (line->json || strpbrk(value, " \"=") != NULL || *value == '\0')
        put_quoted(line, value);
    else
        put_all(line, value);
}

void line_number(struct line *line, const char *key, double value)
{
    char text[40];
    snprintf(text, sizeof text, "%.6g", value);
    put_key(line, key);
    put_all(line, isfinite(value) ? text : "null");
}

void line_end(struct line *line)
{
    if (line->json)
        line->text[line->used++] = '}';
    line->text[line->used++] = '\n';
    fflush(stdout);
    for (size_t at = 0; at < line->used;) {
        const ssize_t written = write(STDOUT_FILENO, line->text + at, line->used - at);
        if (written <= 0)
            return; /* nobody reads */
        at += (size_t)written;
    }
}
