#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Runs the README's commands on a bare machine: a Debian 12 with git, make, python3 and certificates,
# made by debootstrap, with a clone of what is committed here. It has a root file system of its own,
# private mounts, processes of its own, a /dev/shm of 64 MiB, and none of the caller's variables but
# what apt and pip need (tests/support/bare_env.sh).
#
#   tests/bare_machine.sh                          make demo, then make test
#   tests/bare_machine.sh 'make test ONLY=lint'    other commands, one in each argument
#
#   BARE_ROOT=folder    its root, which is kept; the next run goes on with what it has installed and
#                       built. Without it, a folder under TMPDIR, which is removed.
#   BARE_SHARE=folders  of this machine that it sees too, to read (packages for pip, say), besides
#                       those that pip's settings name
#   BARE_MIRROR=address of Debian's packages
set -eu

REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
SUITE=bookworm
MIRROR=${BARE_MIRROR:-http://deb.debian.org/debian}
HOME_THERE=~root
HOME=${HOME:-$HOME_THERE}
PIP_SETTINGS=(/etc/pip.conf /etc/xdg/pip "$HOME/.config/pip" "$HOME/.pip")
TREE=/srv/shmcoll

say() { echo "bare machine: $*"; }
fail() { echo "bare machine: $*" >&2; exit 2; }

check_needs() {
    [ "$(id -u)" = 0 ] || fail "needs root, for mounts (sudo -E make bare-machine)"
    local tool missing=""
    for tool in debootstrap git unshare pivot_root mount; do
        command -v "$tool" >/dev/null || missing="$missing $tool"
    done
    [ -z "$missing" ] || fail "needs$missing (apt-get install debootstrap git util-linux mount)"
}

# ---- what is begun is ended ----

job="" log="" marker=""
root="" doomed="" # a folder that is removed at the end

# A process group of its own: Ctrl-C comes to this script alone, which then kills all of it.
run_job() {
    set -m
    "$@" </dev/null &
    job=$!
    set +m
    local status=0
    wait "$job" || status=$?
    job=""
    return "$status"
}

clean_up() {
    if [ -n "$job" ]; then
        kill -KILL -- "-$job" 2>/dev/null || true
        wait "$job" 2>/dev/null || true
    fi
    rm -f "$log"
    # The last processes may still be writing. Mounts were private, and went with them.
    for _ in 1 2 3 4 5; do
        [ -z "$doomed" ] || rm -rf --one-file-system "$doomed" 2>/dev/null && break || sleep 1
    done
}

# ---- the root ----

make_root() {
    [ -e "$marker" ] && return
    [ -z "$(ls -A "$root")" ] || fail "$root is not empty, and was not made by this script"
    say "debootstrap of $SUITE from $MIRROR"
    doomed=$root
    log=$(mktemp)
    run_job unshare --mount debootstrap --variant=minbase \
        --include=git,make,python3,ca-certificates "$SUITE" "$root" "$MIRROR" >"$log" 2>&1 ||
        { tail -n 5 "$log" >&2; fail "debootstrap failed"; }
    touch "$marker"
    [ -z "${BARE_ROOT:-}" ] || doomed=""
}

copy() { # file-or-folder target: where there is one
    [ ! -e "$1" ] || { mkdir -p "$(dirname "$root$2")" && cp -rLT "$1" "$root$2"; }
}

# How this machine reaches the network, apt its mirror and pip its index.
configure() {
    local setting
    copy /etc/resolv.conf /etc/resolv.conf
    copy /etc/hosts /etc/hosts
    copy /etc/apt/auth.conf /etc/apt/auth.conf
    copy /etc/apt/auth.conf.d /etc/apt/auth.conf.d
    if command -v apt-config >/dev/null; then
        apt-config dump | grep -E '^Acquire::(https?|Check-|Retries|ForceIP)' \
            >"$root/etc/apt/apt.conf.d/90caller" || true
    fi
    copy /usr/local/share/ca-certificates /usr/local/share/ca-certificates
    chroot "$root" update-ca-certificates >/dev/null 2>&1 || fail "update-ca-certificates failed"
    for setting in "${PIP_SETTINGS[@]}"; do
        copy "$setting" "${setting/#$HOME/$HOME_THERE}"
    done
}

# Files and folders that pip's settings and the variables name. An index has its files next to it.
named_paths() {
    {
        "$REPOSITORY/tests/support/bare_env.sh" env | grep -vE '^(HOME|PATH)='
        cat "${PIP_SETTINGS[@]}" "${PIP_SETTINGS[@]/%//pip.conf}" 2>/dev/null || true
    } | grep -oE '(file://)?/[^[:space:],]+' |
        while read -r path; do
            case $path in file://*) dirname "${path#file://}" ;; *) echo "$path" ;; esac
        done | sort -u
    printf '%s\n' ${BARE_SHARE:-}
}

# Copies such files, and prints such folders; what the root has of its own stays.
lend() {
    local path
    named_paths | while read -r path; do
        if [ -f "$path" ]; then
            [ -e "$root$path" ] || copy "$path" "$path"
        elif [ -d "$path" ] && [ "$path" != / ]; then
            mkdir -p "$root$path"
            [ -n "$(ls -A "$root$path")" ] || echo "$path"
        fi
    done
}

copy_tree() {
    local changed
    changed=$(git -C "$REPOSITORY" status --porcelain | wc -l)
    [ "$changed" = 0 ] || say "$changed files are not committed, and not in it"
    if [ -e "$root$TREE" ]; then
        git -C "$root$TREE" fetch -q "$REPOSITORY" HEAD
        git -C "$root$TREE" checkout -qf FETCH_HEAD
        git -C "$root$TREE" clean -qfd # .venv and build stay
    else
        git clone -q --no-hardlinks "$REPOSITORY" "$root$TREE"
    fi
}

# ---- inside: the first process of its namespace ----

mount_root() { # root, folders to show
    local root=$1 node folder
    shift
    mount --make-rprivate /
    mount --bind "$root" "$root" # a mount point, which / is to be
    for folder in "$@"; do
        mount --bind "$folder" "$root$folder"
        mount -o remount,bind,ro "$root$folder"
    done
    mount -t proc proc "$root/proc"
    mount -t sysfs -o ro sysfs "$root/sys"
    mount -t tmpfs -o mode=755 dev "$root/dev"
    mkdir "$root/dev/shm" "$root/dev/pts"
    mount -t tmpfs -o size=64m,mode=1777 shm "$root/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
    ln -s pts/ptmx "$root/dev/ptmx"
    ln -s /proc/self/fd "$root/dev/fd"
    for node in null zero full random urandom tty; do
        touch "$root/dev/$node"
        mount --bind "/dev/$node" "$root/dev/$node"
    done
    mkdir -p "$root/.caller"
    cd "$root"
    pivot_root . .caller
    umount -l /.caller
    rmdir /.caller
}

run_commands() {
    local command begun status failed=0 times=""
    cd "$TREE"
    say "$(sed -n 's/^PRETTY_NAME=//p' /etc/os-release), commit $(git rev-parse --short HEAD)"
    for command in "$@"; do
        say "$command"
        begun=$SECONDS status=0
        HOME=$HOME_THERE tests/support/bare_env.sh bash -c "$command" || status=$?
        [ "$status" = 0 ] || failed=1
        times+=$(printf '%6d s  %s  %s' $((SECONDS - begun)) \
            "$([ "$status" = 0 ] && echo 'ok  ' || echo FAIL)" "$command")$'\n'
    done
    printf '\n==== bare machine ====\n%s%6d s  in all\n' "$times" "$SECONDS"
    return "$failed"
}

inside() { # root, number of folders, folders, commands
    local root=$1 count=$2
    shift 2
    mount_root "$root" "${@:1:count}"
    shift "$count"
    run_commands "$@"
}

# ---- outside ----

outside() {
    check_needs
    trap clean_up EXIT
    trap 'exit 130' INT TERM HUP
    if [ -n "${BARE_ROOT:-}" ]; then
        mkdir -p "$BARE_ROOT"
        root=$(cd "$BARE_ROOT" && pwd)
    else
        root=$(mktemp -d "${TMPDIR:-/tmp}/shmcoll-bare-XXXXXX")
        chmod 755 "$root" # it becomes /, and other users live there, too
        doomed=$root
    fi
    marker=$root/.made-by-bare-machine
    make_root
    configure
    copy_tree
    mapfile -t shown < <(lend)
    [ $# -gt 0 ] || set -- "make demo" "make test"
    run_job unshare --mount --pid --fork --kill-child \
        "$REPOSITORY/tests/bare_machine.sh" --inside "$root" "${#shown[@]}" "${shown[@]}" "$@"
}

if [ "${1:-}" = --inside ]; then
    shift
    inside "$@"
else
    outside "$@"
fi
