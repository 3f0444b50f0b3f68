# SPDX-License-Identifier: BSD-3-Clause
"""Asks the driver's library which GPUs there are and which can reach each other: in a process of its own, because
it may be broken or slow. argv: the library's name. Prints one JSON object. Makes no context on a GPU.
"""

import ctypes
import json
import sys

_FD_HANDLES = 103  # CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED


def ask(library: str) -> dict[str, object]:
    try:
        driver = ctypes.CDLL(library)
    except OSError as error:
        return {"error": str(error)}
    code = driver.cuInit(0)
    if code != 0:
        name = ctypes.c_char_p()
        driver.cuGetErrorName(code, ctypes.byref(name))
        return {"error": f"cuInit gives {(name.value or b'an error').decode()} ({code})"}
    number = ctypes.c_int()
    code = driver.cuDeviceGetCount(ctypes.byref(number))
    if code != 0:
        return {"error": f"cuDeviceGetCount gives error {code}"}
    apart, private = [], []
    for one in range(number.value):
        answer = ctypes.c_int()
        code = driver.cuDeviceGetAttribute(ctypes.byref(answer), _FD_HANDLES, one)
        if code == 0 and not answer.value:
            private.append(one)
        for other in range(number.value):
            if one == other:
                continue
            code = driver.cuDeviceCanAccessPeer(ctypes.byref(answer), one, other)
            if code == 0 and not answer.value:
                apart.append([one, other])
    return {"count": number.value, "apart": apart, "no_handles": private}


if __name__ == "__main__":
    print(json.dumps(ask(sys.argv[1])))
