// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// What a sum over several hosts must be: each host's ranks in order, then the hosts in order.
#include "tests/support/hosts.h"

namespace shmcoll::test
{

using elements::Combination;

shc_op reduction_of(shc_op_kind kind, const Combination &what, double premul = 0);

// Element i of the sum.
void expected_element(const Combination &c, const Labels &labels, const std::vector<Bytes> &inputs,
                      const std::vector<double> &factors, size_t i, uint8_t *out);

// Inputs in narrow floats: all in floats, and rounded at the end.
void narrow_element(const Combination &c, const Labels &labels, const std::vector<Bytes> &inputs,
                    const std::vector<double> &factors, size_t i, uint8_t *out);

} // namespace shmcoll::test
