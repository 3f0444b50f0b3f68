/* SPDX-License-Identifier: BSD-3-Clause */
#include "peers.h"

double row_roof(const struct row *row, int round)
{
    double exchanged = (double)row->bytes / row->exchange[round];
    return (row->scale[round] + exchanged) / row->seconds[OURS][round];
}

void rows_begin(const struct world *world, const struct head *head, FILE *json)
{
    printf("# %d ranks; a flag one way %.0f ns; fresh lines of the other read at %.0f GB/s, "
           "stored to again at %.0f GB/s\n# %-12s %10s  %10s  %7s us  %7s  %5s  %7s  %7s  %7s\n",
           world->size, head->hop * 1e9, head->exchange / 1e9, head->rewrite / 1e9, "operation",
           "bytes", "shmcoll us", head->other, "ratio", "GB/s", "roof", "scale", "bare");
    if (json)
        fprintf(json, "{\"ranks\": %d, \"hop_ns\": %.1f, \"exchange_gbs\": %.2f}\n", world->size,
                head->hop * 1e9, head->exchange / 1e9);
}

static void print_json(FILE *json, const char *key, const double *values, int count, double unit)
{
    fprintf(json, ", \"%s\": [", key);
    for (int i = 0; i < count; i++)
        fprintf(json, "%s%.4f", i ? ", " : "", values[i] * unit);
    fputs("]", json);
}

static void add_json(const struct row *row, FILE *json)
{
    fprintf(json, "{\"op\": \"%s\", \"bytes\": %zu, \"dtype\": \"%s\", \"redop\": \"%s\"", row->op,
            row->bytes, shc_dtype_name(row->numbers.dtype), shc_redop_name(row->numbers.redop));
    fprintf(json, ", \"right\": %s", row->right ? "true" : "false");
    print_json(json, "ours_us", row->seconds[OURS], row->rounds, 1e6);
    print_json(json, "theirs_us", row->seconds[THEIRS], row->rounds, 1e6);
    print_json(json, "exchange_gbs", row->exchange, row->rounds, 1e-9);
    if (row->scaled)
        print_json(json, "scale_us", row->scale, row->rounds, 1e6);
    if (row->bare[0] > 0)
        print_json(json, "bare_us", row->bare, row->rounds, 1e6);
    print_json(json, "hop_us", row->hop, row->rounds, 1e6);
    fputs("}\n", json);
    fflush(json);
}

void rows_add(const struct row *row, FILE *json)
{
    double ratios[MAX_ROUNDS], roof[MAX_ROUNDS], scale[MAX_ROUNDS], bare[MAX_ROUNDS];
    double hops[MAX_ROUNDS];
    for (int r = 0; r < row->rounds; r++) {
        ratios[r] = row->seconds[THEIRS][r] / row->seconds[OURS][r];
        roof[r] = row_roof(row, r);
        scale[r] = row->scale[r] / row->seconds[OURS][r];
        bare[r] = row->bare[r] / row->seconds[OURS][r];
        hops[r] = row->seconds[OURS][r] / row->hop[r];
    }
    printf("%-14s %10zu  %10.2f  %10.2f  %6.2fx  %5.0f", row->op, row->bytes,
           median(row->seconds[OURS], row->rounds) * 1e6,
           median(row->seconds[THEIRS], row->rounds) * 1e6, median(ratios, row->rounds),
           median(row->exchange, row->rounds) / 1e9);
    if (row->scaled)
        printf("  %5.0f %%  %5.0f %%", 100 * median(roof, row->rounds),
               100 * median(scale, row->rounds));
    if (row->bare[0] > 0)
        printf(row->scaled ? "  %5.0f %%" : "                    %5.0f %%",
               100 * median(bare, row->rounds));
    if (row->hopped)
        printf("  %.2f hops", median(hops, row->rounds));
    if (row->numbers.dtype != SHC_FLOAT32 || row->numbers.redop != SHC_SUM)
        printf("  %s %s", shc_dtype_name(row->numbers.dtype), shc_redop_name(row->numbers.redop));
    printf("%s\n", row->right ? "" : "  WRONG");
    fflush(stdout);
    if (json)
        add_json(row, json);
}
