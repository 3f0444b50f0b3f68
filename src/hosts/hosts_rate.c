/* SPDX-License-Identifier: BSD-3-Clause */
#include "hosts/hosts_rate.h"

#include "shm/base/clock.h"

void shc_hosts_rate_begin(struct shc_hosts_rate *rate, uint64_t bytes, uint64_t now_ns)
{
    if (rate->under_way++ == 0) {
        rate->begun_ns = now_ns;
        rate->bytes = 0;
        rate->fails = false;
    }
    rate->bytes += bytes;
}

void shc_hosts_rate_end(struct shc_hosts_rate *rate, bool good, uint64_t now_ns)
{
    rate->fails |= !good;
    if (--rate->under_way > 0 || rate->fails || rate->bytes < SHC_HOSTS_PERIOD_BYTES)
        return;
    rate->sample_ns += now_ns > rate->begun_ns ? now_ns - rate->begun_ns : 1;
    rate->sample_bytes += rate->bytes;
    if (rate->sample_bytes < SHC_HOSTS_SAMPLE_BYTES)
        return;
    const double each = (double)rate->sample_bytes * (double)SHC_NS_PER_S / (double)rate->sample_ns;
    rate->samples[rate->count++ % SHC_HOSTS_SAMPLES] = each < 1 ? 1 : (uint64_t)each;
    rate->sample_ns = rate->sample_bytes = 0;
}

uint64_t shc_hosts_rate_known(const struct shc_hosts_rate *rate)
{
    uint64_t sorted[SHC_HOSTS_SAMPLES] = {0};
    const uint64_t samples = rate->count < SHC_HOSTS_SAMPLES ? rate->count : SHC_HOSTS_SAMPLES;
    for (uint64_t i = 0; i < samples; i++) {
        uint64_t at = i;
        for (; at > 0 && sorted[at - 1] > rate->samples[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = rate->samples[i];
    }
    return sorted[samples / 2]; /* none: 0 */
}
