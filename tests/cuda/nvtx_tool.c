/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A tool that listens to NVTX, as Nsight Systems does: NVTX_INJECTION64_PATH names it. It writes a line for each
 * category and each range of the domain "shmcoll" to the file that NVTX_TOOL_FILE names, with the process's number:
 *   category <number> <name>
 *   push <category> <payload> <message>
 *   pop
 */
#include <nvtx3/nvToolsExt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[512];
static char ours; /* its address is the domain's handle */

/* Ranks look whether their descriptors are closed: none stays open here. */
__attribute__((format(printf, 1, 2))) static void tell(const char *format, ...)
{
    va_list args;
    FILE *file = fopen(path, "a");
    if (file == NULL)
        return;
    va_start(args, format);
    vfprintf(file, format, args);
    va_end(args);
    fclose(file);
}

static nvtxDomainHandle_t create(const char *name)
{
    return strcmp(name, "shmcoll") == 0 ? (nvtxDomainHandle_t)(void *)&ours : NULL;
}

static void name_category(nvtxDomainHandle_t domain, uint32_t category, const char *name)
{
    if ((void *)domain == &ours)
        tell("category %u %s\n", category, name);
}

static int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *range)
{
    if ((void *)domain == &ours)
        tell("push %u %llu %s\n", range->category, (unsigned long long)range->payload.ullValue,
             range->message.ascii);
    return 0;
}

static int pop(nvtxDomainHandle_t domain)
{
    if ((void *)domain == &ours)
        tell("pop\n");
    return 0;
}

__attribute__((visibility("default"))) int
InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table);

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table)
{
    const NvtxExportTableCallbacks *callbacks = get_table(NVTX_ETID_CALLBACKS);
    const char *name = getenv("NVTX_TOOL_FILE");
    NvtxFunctionTable table;
    unsigned int size;
    if (callbacks == NULL || name == NULL ||
        !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size))
        return 0;
    snprintf(path, sizeof path, "%s.%d", name, (int)getpid());
    *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)create;
    *table[NVTX_CBID_CORE2_DomainNameCategoryA] = (NvtxFunctionPointer)name_category;
    *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push;
    *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop;
    return 1;
}
