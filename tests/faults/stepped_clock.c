/* A wall clock that a test can step, for a whole process: LD_PRELOAD this, with STEPPED_CLOCK naming a file of 8 bytes.
 *
 * The file holds an int64 of microseconds, shared memory between the test and the process: what is written there is added
 * to the real time from the next look at the clock on. The monotonic clock is left alone, as it is on a real machine.
 * Before the file is mapped (an allocator may ask for the time before anything else runs) nothing is added.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset_us;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("STEPPED_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof *offset_us, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED) offset_us = mapped;
}

static int64_t now_us(void) {
    struct timespec real;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &real);
    return (int64_t)real.tv_sec * 1000000 + real.tv_nsec / 1000 + (offset_us ? *offset_us : 0);
}

int clock_gettime(clockid_t id, struct timespec *out) {
    if (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE) return (int)syscall(SYS_clock_gettime, id, out);
    int64_t us = now_us();
    out->tv_sec = us / 1000000;
    out->tv_nsec = us % 1000000 * 1000;
    return 0;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    (void)zone;
    int64_t us = now_us();
    out->tv_sec = us / 1000000;
    out->tv_usec = us % 1000000;
    return 0;
}

time_t time(time_t *out) {
    time_t seconds = now_us() / 1000000;
    if (out) *out = seconds;
    return seconds;
}
