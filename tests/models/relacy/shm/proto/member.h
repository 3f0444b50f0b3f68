// SPDX-License-Identifier: BSD-3-Clause
#pragma once
//
// Stands for shm/proto/member.h in the weak_*.cc models: nobody leaves.

#include "shm/proto/seat.h"

enum shc_member_state { SHC_MEMBER_ALIVE, SHC_MEMBER_LEFT };

SHC_INLINE shc_member_state shc_member_look(const shc_seat *, int)
{
    return SHC_MEMBER_ALIVE;
}
