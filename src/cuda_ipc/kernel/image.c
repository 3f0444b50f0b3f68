/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda_ipc/kernel/image.h"

#include <stddef.h>

#ifdef SHC_KERNEL_IMAGE_FILE

/* The assembler reads the file: no other tool is needed, and no C source of megabytes. */
__asm__(".pushsection .rodata, \"a\"\n"
        ".balign 16\n"
        "shc_kernel_image_bytes:\n"
        ".incbin \"" SHC_KERNEL_IMAGE_FILE "\"\n"
        ".popsection\n");

extern const unsigned char shc_kernel_image_bytes[] __attribute__((visibility("hidden")));
const void *const shc_kernel_image = shc_kernel_image_bytes;

#else

const void *const shc_kernel_image = NULL;

#endif
