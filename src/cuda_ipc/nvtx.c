/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda_ipc/nvtx.h"

#ifdef SHC_HAVE_NVTX
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static nvtxDomainHandle_t domain; /* constant after `once`; NULL: no tool listens */

static void open_domain(void)
{
    domain = nvtxDomainCreateA("shmcoll");
}

bool shc_nvtx_is_built(void)
{
    return true;
}

/* FNV-1a: a group has the same category on all ranks. */
uint32_t shc_nvtx_category(const char *group)
{
    uint32_t category = 2166136261u;
    if (pthread_once(&once, open_domain) != 0 || domain == NULL)
        return 0;
    for (const char *c = group; *c; c++)
        category = (category ^ (unsigned char)*c) * 16777619u;
    category = category != 0 ? category : 1;
    nvtxDomainNameCategoryA(domain, category, group);
    return category;
}

static uint64_t elements_of(const struct shc_tensors *tensors)
{
    uint64_t all = 0;
    for (uint32_t i = 0; i < tensors->count; i++) {
        uint64_t elements = 1;
        for (int32_t d = 0; d < tensors->list[i].ndim; d++)
            elements *= (uint64_t)tensors->list[i].sizes[d];
        all += elements;
    }
    return all;
}

/* Of the larger side: that of an all_gather is its output, that of a reduce_scatter its input. */
static uint64_t bytes_of(const struct shc_op *op)
{
    if (op->kind == SHC_BARRIER || (unsigned)op->dtype >= SHC_DTYPE_COUNT)
        return 0;
    const uint64_t in = elements_of(&op->input), out = elements_of(&op->output);
    return (in > out ? in : out) *
           (op->dtype == SHC_OPAQUE ? op->elem_bytes : shc_dtype_bytes(op->dtype));
}

void shc_nvtx_push(uint32_t category, const struct shc_op *ops, int count)
{
    nvtxEventAttributes_t range = {.version = NVTX_VERSION,
                                   .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
                                   .category = category,
                                   .payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64,
                                   .messageType = NVTX_MESSAGE_TYPE_ASCII};
    for (int i = 0; i < count; i++)
        range.payload.ullValue += bytes_of(&ops[i]);
    range.message.ascii = count == 1 ? shc_op_kind_name(ops[0].kind) : "batch";
    (void)nvtxDomainRangePushEx(domain, &range);
}

void shc_nvtx_pop(void)
{
    (void)nvtxDomainRangePop(domain);
}

#else

bool shc_nvtx_is_built(void)
{
    return false;
}

uint32_t shc_nvtx_category(const char *group)
{
    (void)group;
    return 0;
}

void shc_nvtx_push(uint32_t category, const struct shc_op *ops, int count)
{
    (void)category, (void)ops, (void)count;
}

void shc_nvtx_pop(void) {}

#endif
