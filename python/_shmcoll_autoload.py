# SPDX-License-Identifier: BSD-3-Clause
"""Makes the name "shmcoll" known to torch.distributed without ``import shmcoll``.

Two entry points lead here: ``torch.distributed.backends`` (torch >= 2.14, asked for by name) and
``torch.backends`` (before, run at the end of every ``import torch``). Both must never fail, load
nothing and take no time, so this module stands outside the package: importing it does not import
shmcoll. ``SHMCOLL_AUTOLOAD=0`` turns the second one off.
"""

import os
import sys


def create(options: object, backend_options: object) -> object:
    """The creator torch calls: loads shmcoll on first use."""
    import shmcoll

    return shmcoll.create_backend(options, backend_options)


def register() -> None:
    """Registers the creator with torch.distributed; once it is known, does nothing."""
    from torch.distributed import Backend

    if "SHMCOLL" not in Backend._plugins:
        Backend.register_backend("shmcoll", create, extended_api=True, devices=["cpu", "cuda"])


def autoload() -> None:
    """The ``torch.backends`` hook: a failure here would break ``import torch`` itself."""
    said = os.environ.get("SHMCOLL_AUTOLOAD") or "1"
    if said == "0":
        return
    try:
        if said != "1" and sys.stderr is not None:  # as the library says it of other variables
            text = f"shmcoll: SHMCOLL_AUTOLOAD={said} is not one of 0|1; ignored"
            print(text, file=sys.stderr, flush=True)
        from torch.distributed import Backend

        if not hasattr(Backend, "_ensure_backend_registered"):  # else torch finds us by name
            register()
    except Exception:  # torch without distributed, or one we do not know: then import shmcoll says
        pass
