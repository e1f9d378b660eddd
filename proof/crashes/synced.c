/* Keeps a second copy of one file that holds what has been synced, and nothing else: the file after a power loss.
 *
 * Preloaded (LD_PRELOAD) into every process that writes the file. The file itself lives on as always, in the kernel's cache.
 * At each msync(MS_SYNC), fsync or fdatasync the bytes that it covers, and only these, are written to the copy: the copy is the
 * disk, and the real one, which nobody will look at after the loss, is not waited for. What was written and never synced is
 * not in the copy, as it need not be on a disk that lost its power. Nor is a file there whose name nobody synced: an fsync of
 * the file's directory leaves a mark beside the copy, COPY.named, and one of the directory above it COPY.placed.
 *
 *   CAPLINE_SYNCED_OF   the file
 *   CAPLINE_SYNCED_TO   the copy
 *   CAPLINE_STOP_AT     n: the process is killed before its n-th sync begins (0: not)
 *   CAPLINE_SYNC_LIES   1: the sync of a single page, as a commit's last one is, is reported as done and is not: a disk that
 *                       must be found out
 *
 * A sync that is cut off by the death of its process leaves some of its pages in the copy, as a power loss in the middle
 * would. The file's size is as durable as its bytes: both kinds of sync write the metadata that reading the data needs.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST_MAPS 64
#define CHUNK (1 << 20)
#define PAGE 4096

static struct { uintptr_t at; size_t bytes; off_t offset; } maps[MOST_MAPS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long syncs;

static long setting(const char *name) {
    const char *value = getenv(name);
    return value ? atol(value) : 0;
}

static int is_open(int fd, const char *path) {
    struct stat one, other;
    return path && fd >= 0 && !fstat(fd, &one) && !stat(path, &other) && one.st_ino == other.st_ino &&
           one.st_dev == other.st_dev;
}

static int is_watched(int fd) { return is_open(fd, getenv("CAPLINE_SYNCED_OF")); }

/* Whether this sync takes place; it may be this process's last. Called once for each sync of the watched file. */
static int takes_place(size_t bytes) {
    long number = __atomic_add_fetch(&syncs, 1, __ATOMIC_SEQ_CST);
    if (number == setting("CAPLINE_STOP_AT")) kill(getpid(), SIGKILL);
    return bytes > PAGE || !setting("CAPLINE_SYNC_LIES");
}

static int open_copy(void) {
    const char *path = getenv("CAPLINE_SYNCED_TO");
    int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    struct stat file, copy;
    if (fd < 0 || flock(fd, LOCK_EX)) abort();  /* no copy, no test */
    if (stat(getenv("CAPLINE_SYNCED_OF"), &file) || fstat(fd, &copy)) abort();
    if (copy.st_size < file.st_size && ftruncate(fd, file.st_size)) abort();
    return fd;
}

/* Write the pages that differ: a sync covers the whole map, of which little has changed. */
static void keep(int copy, const char *bytes, size_t size, off_t offset) {
    const char *there = (const char *)syscall(SYS_mmap, NULL, size, PROT_READ, MAP_SHARED, copy, offset);
    if (there == MAP_FAILED) abort();
    for (size_t at = 0; at < size; at += PAGE) {
        size_t length = size - at < PAGE ? size - at : PAGE;
        if (memcmp(there + at, bytes + at, length) && pwrite(copy, bytes + at, length, offset + (off_t)at) != (ssize_t)length)
            abort();
    }
    syscall(SYS_munmap, there, size);
}

void *mmap(void *addr, size_t bytes, int protection, int flags, int fd, off_t offset) {
    void *at = (void *)syscall(SYS_mmap, addr, bytes, protection, flags, fd, offset);
    if (at == MAP_FAILED || !(flags & MAP_SHARED) || !is_watched(fd)) return at;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_MAPS; i++) {
        if (maps[i].bytes) continue;
        maps[i].at = (uintptr_t)at;
        maps[i].bytes = bytes;
        maps[i].offset = offset;
        pthread_mutex_unlock(&lock);
        return at;
    }
    abort();
}

void *mmap64(void *addr, size_t bytes, int protection, int flags, int fd, off_t offset) {
    return mmap(addr, bytes, protection, flags, fd, offset);
}

int munmap(void *addr, size_t bytes) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_MAPS; i++)
        if (maps[i].bytes && maps[i].at == (uintptr_t)addr) maps[i].bytes = 0;
    pthread_mutex_unlock(&lock);
    return (int)syscall(SYS_munmap, addr, bytes);
}

int msync(void *addr, size_t bytes, int flags) {
    uintptr_t from = (uintptr_t)addr, to = from + bytes;
    int counted = 0, happens = 1;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_MAPS; i++)
        if (maps[i].bytes && (flags & MS_SYNC) && from < maps[i].at + maps[i].bytes && maps[i].at < to) counted = 1;
    pthread_mutex_unlock(&lock);
    if (counted) happens = takes_place(bytes);
    if (!counted) return (int)syscall(SYS_msync, addr, bytes, flags);
    if (!happens) return 0;
    int copy = open_copy();
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_MAPS; i++) {
        uintptr_t begin = maps[i].at > from ? maps[i].at : from, end = maps[i].at + maps[i].bytes;
        if (end > to) end = to;
        if (maps[i].bytes && begin < end)
            keep(copy, (const char *)begin, end - begin, maps[i].offset + (off_t)(begin - maps[i].at));
    }
    pthread_mutex_unlock(&lock);
    close(copy);
    return 0;
}

/* Marks the name that an fsync of this directory makes durable, if it is one of the two that lead to the file. */
static int sync_name(int fd) {
    const char *of = getenv("CAPLINE_SYNCED_OF"), *to = getenv("CAPLINE_SYNCED_TO"), *mark = NULL;
    char path[PATH_MAX], *directory = path;
    if (!of || !to || access(of, F_OK)) return 0;
    snprintf(path, sizeof path, "%s", of);
    if (is_open(fd, directory = dirname(directory))) mark = "named";
    else if (is_open(fd, dirname(directory))) mark = "placed";
    if (!mark) return 0;
    if (takes_place(SIZE_MAX)) {
        snprintf(path, sizeof path, "%s.%s", to, mark);
        int made = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        if (made < 0) abort();
        close(made);
    }
    return 1;
}

static int sync_file(long call, int fd) {
    static char chunk[CHUNK];
    if (!is_watched(fd)) return sync_name(fd) ? 0 : (int)syscall(call, fd);
    if (!takes_place(SIZE_MAX)) return 0;
    int copy = open_copy();
    pthread_mutex_lock(&lock);
    ssize_t got;
    for (off_t at = 0; (got = pread(fd, chunk, CHUNK, at)) > 0; at += got) keep(copy, chunk, (size_t)got, at);
    pthread_mutex_unlock(&lock);
    close(copy);
    return 0;
}

int fsync(int fd) { return sync_file(SYS_fsync, fd); }
int fdatasync(int fd) { return sync_file(SYS_fdatasync, fd); }
