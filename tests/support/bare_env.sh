#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# bare_env.sh COMMAND...: runs it with what a machine on which nothing is set has: a PATH of system
# folders and a home; and with what apt and pip may need to reach their packages.
set -eu
needed='CI|HOME|TERM|DEBIAN_FRONTEND|PIP_\w+|\w+_CA_BUNDLE|SSL_CERT_\w+|\w+_proxy|\w+_PROXY'
mapfile -d '' kept < <(env -0 | grep -zE "^($needed)=")
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${kept[@]}" "$@"
