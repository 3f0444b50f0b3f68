/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * One line of results: `experiment key=value ...`, or the same as a JSON object. Written at once, so
 * that lines of several processes do not mix.
 */

#include <stdbool.h>
#include <stddef.h>

struct line {
    bool json;
    size_t used;
    char text[2048];
};

void line_begin(struct line *line, bool json, const char *experiment);
void line_text(struct line *line, const char *key, const char *value);
void line_number(struct line *line, const char *key, double value);
void line_end(struct line *line); /* to the standard output */
