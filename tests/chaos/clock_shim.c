/* A wrong clock between Python and the C library (LD_PRELOAD), controlled by a shared page: the struct below.
 *
 * Only the wall clock is shifted, and only for calls from Python itself (the main program and libpython): the program under test reads
 * that clock. Libraries with their own waits pass absolute times to the kernel, whose clock is right: shifted times would make them wait
 * for days, which no wrong clock does. Monotonic clocks are not shifted.
 *
 * Invariant: with a page of zeros the process behaves as it would without this library.
 * clock_shim.py has the same layout.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct orders {
    volatile int64_t offset_millis;
    volatile uint32_t shifted; /* calls that were answered with another time, for tests of this library */
};

static struct orders none;
static struct orders *orders = &none;

#define RANGES_MAX 8
static struct { uintptr_t start, end; } ranges[RANGES_MAX];
static int range_count;

static int note_range(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)size, (void)unused;
    int is_python = info->dlpi_name == NULL || info->dlpi_name[0] == 0 || strstr(info->dlpi_name, "libpython") != NULL;
    for (int at = 0; is_python && at < info->dlpi_phnum && range_count < RANGES_MAX; at++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[at];
        if (header->p_type != PT_LOAD || !(header->p_flags & PF_X))
            continue;
        ranges[range_count].start = info->dlpi_addr + header->p_vaddr;
        ranges[range_count].end = ranges[range_count].start + header->p_memsz;
        range_count++;
    }
    return 0;
}

__attribute__((constructor)) static void start(void)
{
    dl_iterate_phdr(note_range, NULL);
    const char *path = getenv("CHAOS_CLOCK_ORDERS");
    if (path == NULL)
        return;
    /* not by open(): that may be another shim's, which is not ready yet */
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        abort(); /* a fault that silently does nothing would be a test that cannot fail */
    void *page = mmap(NULL, sizeof(struct orders), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (page == MAP_FAILED)
        abort();
    orders = page;
}

static int64_t offset_for(const void *caller)
{
    int64_t offset = orders->offset_millis;
    if (offset == 0)
        return 0;
    for (int at = 0; at < range_count; at++)
        if ((uintptr_t)caller >= ranges[at].start && (uintptr_t)caller < ranges[at].end) {
            __atomic_add_fetch(&orders->shifted, 1, __ATOMIC_RELAXED);
            return offset;
        }
    return 0;
}

static void shift(struct timespec *now, int64_t millis)
{
    int64_t nanos = now->tv_nsec + (millis % 1000) * 1000000;
    now->tv_sec += millis / 1000 + nanos / 1000000000;
    nanos %= 1000000000;
    if (nanos < 0) {
        nanos += 1000000000;
        now->tv_sec -= 1;
    }
    now->tv_nsec = nanos;
}

static int read_clock(clockid_t clock, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL)
        real = dlsym(RTLD_NEXT, "clock_gettime");
    return real(clock, now);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = read_clock(clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI))
        shift(now, offset_for(__builtin_return_address(0)));
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    (void)zone;
    struct timespec precise;
    if (read_clock(CLOCK_REALTIME, &precise) != 0)
        return -1;
    shift(&precise, offset_for(__builtin_return_address(0)));
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result)
{
    struct timespec precise;
    if (read_clock(CLOCK_REALTIME, &precise) != 0)
        return -1;
    shift(&precise, offset_for(__builtin_return_address(0)));
    if (result != NULL)
        *result = precise.tv_sec;
    return precise.tv_sec;
}
