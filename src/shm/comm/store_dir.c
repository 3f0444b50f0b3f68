/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A store in a directory, for programs that have no other. One file per key; a lock file orders
 * read-modify-writes. A reader never sees half a value: values are renamed into place.
 */
#include "shm/base/status.h"
#include "shm/os/os.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct directory {
    char path[PATH_MAX - 256];
};

/* Keys have slashes; files do not. */
static void file_of(const struct directory *dir, const char *key, char path[PATH_MAX])
{
    int used = snprintf(path, PATH_MAX, "%s/key.", dir->path);
    for (; *key && used < PATH_MAX - 1; key++)
        path[used++] = *key == '/' ? '.' : *key;
    path[used] = '\0';
}

static int dir_set(void *ctx, const char *key, const void *value, size_t bytes)
{
    char path[PATH_MAX];
    file_of(ctx, key, path);
    return shc_os_file_put(path, value, bytes);
}

static int dir_get(void *ctx, const char *key, void *value, size_t capacity, size_t *bytes)
{
    char path[PATH_MAX];
    file_of(ctx, key, path);
    return shc_os_file_get(path, value, capacity, bytes);
}

static int dir_check(void *ctx, const char *const *keys, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char byte;
        size_t bytes;
        int error = dir_get(ctx, keys[i], &byte, 0, &bytes);
        if (error != 0 && error != EMSGSIZE)
            return error;
    }
    return 0;
}

static int lock_of(const struct directory *dir, int *lock)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/lock", dir->path);
    return shc_os_lock(path, lock);
}

static int dir_add(void *ctx, const char *key, int64_t delta, int64_t *value)
{
    int lock;
    int error = lock_of(ctx, &lock);
    if (error != 0)
        return error;
    int64_t now = 0;
    size_t bytes;
    error = dir_get(ctx, key, &now, sizeof now, &bytes);
    if (error == ENOENT)
        error = 0;
    now += delta;
    if (error == 0)
        error = dir_set(ctx, key, &now, sizeof now);
    shc_os_unlock(lock);
    if (error == 0)
        *value = now;
    return error;
}

static int dir_put_first(void *ctx, const char *key, const void *value, size_t bytes, void *now,
                         size_t capacity, size_t *now_bytes)
{
    int lock;
    int error = lock_of(ctx, &lock);
    if (error != 0)
        return error;
    error = dir_get(ctx, key, now, capacity, now_bytes);
    if (error == ENOENT) {
        error = bytes <= capacity ? dir_set(ctx, key, value, bytes) : EMSGSIZE;
        if (error == 0) {
            memcpy(now, value, bytes);
            *now_bytes = bytes;
        }
    }
    shc_os_unlock(lock);
    return error;
}

enum shc_status shc_store_dir_open(const char *path, struct shc_store *store)
{
    struct directory *dir = malloc(sizeof *dir);
    if (!dir)
        return shc_fail(SHC_ERR_NOMEM, "no memory for a store");
    int error = snprintf(dir->path, sizeof dir->path, "%s", path) < (int)sizeof dir->path
                    ? shc_os_directory_make(path)
                    : ENAMETOOLONG;
    if (error != 0) {
        free(dir);
        return shc_fail_errno(SHC_ERR_STORE, error, "cannot make the store's directory %s", path);
    }
    *store = (struct shc_store){
        .ctx = dir,
        .set = dir_set,
        .get = dir_get,
        .check = dir_check,
        .add = dir_add,
        .put_first = dir_put_first,
    };
    return SHC_OK;
}

void shc_store_dir_close(struct shc_store *store)
{
    free(store->ctx);
    store->ctx = NULL;
}
