#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# build_and_run.sh CMAKE BUILD_DIR CC SOURCE
# Installs the library into a new prefix, builds the program against it with what pkg-config says, as C11
# and as C++17, and with what CMake's find_package() finds; runs it with 1 to 5 ranks.
set -eu
cmake=$1 build=$2 cc=$3 source=$4

prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
"$cmake" --install "$build" --prefix "$prefix" >"$prefix/install.log"
pc=$(find "$prefix" -name shmcoll.pc)
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH
pkg-config --validate shmcoll
flags=$(pkg-config --cflags --libs shmcoll)
rpath=-Wl,-rpath,$(pkg-config --variable=libdir shmcoll)

# Flags are words.
# shellcheck disable=SC2086
"$cc" -std=c11 -D_DEFAULT_SOURCE -Wall -Wextra -Wpedantic -Werror "$source" $flags "$rpath" \
    -o "$prefix/program"
echo '#include <shm/shmcoll.h>
int main() { return *shc_version() ? 0 : 1; }' >"$prefix/version.cc"
# shellcheck disable=SC2086
"$cc" -x c++ -std=c++17 -Wall -Wextra -Wpedantic -Werror "$prefix/version.cc" -x none $flags \
    "$rpath" -o "$prefix/version"
"$prefix/version"

"$cmake" -S "$(dirname "$0")/find_package" -B "$prefix/build" -DSOURCE="$source" \
    -DCMAKE_C_COMPILER="$cc" -DCMAKE_PREFIX_PATH="$prefix" >"$prefix/find.log"
"$cmake" --build "$prefix/build" >>"$prefix/find.log"

for ranks in 1 2 3 5; do
    program=$prefix/program
    [ $ranks = 3 ] && program=$prefix/build/program
    said=$("$program" $ranks)
    echo "$said"
    case $said in
    "$ranks ranks, mean of element 10: "*) ;;
    *) exit 1 ;;
    esac
done
