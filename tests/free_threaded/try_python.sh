#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Builds the library for a free-threaded Python in build/free-threaded, and tries it there:
#     tests/free_threaded/try_python.sh python3.13t [torch==2.12.0]
# It downloads torch, some gigabytes. A second run takes the environment that is there.
set -eu

python=$1
torch=${2:-torch}
root=$(git rev-parse --show-toplevel)
folder=$root/build/free-threaded
tests=$root/tests/free_threaded

"$python" -c 'import sys; sys.exit(sys._is_gil_enabled())' || {
    echo "$python has the interpreter's lock: name a free-threaded Python" >&2
    exit 1
}
if [ ! -e "$folder/ready" ]; then
    "$python" -m venv "$folder"
    "$folder/bin/python" -m pip install -q "$torch" numpy setuptools wheel ninja pytest
    touch "$folder/ready"
fi

# A copy: a build in the tree itself would replace the glue that .venv uses.
cd "$root"
mkdir -p "$folder/tree"
git ls-files -z | xargs -0 cp --parents -t "$folder/tree"
cd "$folder/tree"
PATH="$folder/bin:$PATH" "$folder/bin/python" -m pip install -q --no-build-isolation --no-deps \
    --force-reinstall .

cd "$folder"
export OMP_NUM_THREADS=1
# Nothing of the library turns the lock on. (A warning says so if it does.)
bin/python -W error -c "
import sys, torch, shmcoll
assert shmcoll.build_info()
shmcoll.Options, shmcoll._glue.glue
import shmcoll._C
assert not sys._is_gil_enabled()"
bin/python "$tests/many_threads.py"
# Off in whatever is loaded later: triton does not say whether it needs it.
export PYTHON_GIL=0
bin/python "$tests/many_threads.py" 200
SHMCOLL_GLUE=python bin/python "$tests/many_threads.py" 100
SHMCOLL_GLUE=python bin/python "$tests/races.py"
cd "$root"
# (tests/proc/test_lock.py is about a lock that is kept.)
"$folder/bin/python" -m pytest -q -p no:cacheprovider tests/proc/test_interrupt.py tests/proc/test_fork.py \
    tests/proc/test_exit.py tests/python/test_collectives.py \
    tests/python/test_direct.py tests/python/test_futures.py tests/python/test_groups.py \
    tests/python/test_p2p.py tests/python/test_shared_memory.py tests/python/test_threads.py \
    tests/python/test_work.py
