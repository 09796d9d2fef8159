/* Faults of a disk, between a process and the C library (LD_PRELOAD); ordered by a shared page, the struct below.
 *
 * Only synchronisation (fsync, fdatasync, msync, and writes to files opened with O_DSYNC or O_SYNC) and pwrite are touched. O_DSYNC is
 * always taken off at open and made good by an fdatasync after each write, so that swallowing can begin and end while files are open.
 *
 * Invariant: with a page of zeros the process behaves as it would without this library.
 * disk_shim.py has the same layout.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

struct orders {
    volatile uint32_t swallow_syncs;   /* 1: say done and do nothing */
    volatile uint32_t delay_millis;    /* before each synchronisation */
    volatile int32_t sync_errno;       /* 0: none; else what synchronisation fails with */
    volatile int32_t write_errno;      /* 0: none; else what pwrite fails with */
    volatile uint32_t hang;            /* 1: synchronisation does not return before this is 0 again */
    /* what was done, for tests of this library */
    volatile uint32_t synced, swallowed, delayed, failed;
};

#define FILES_MAX 65536
static unsigned char is_dsync[FILES_MAX];
static struct orders none;
static struct orders *orders = &none;

static int (*real_open)(const char *, int, ...);
static int (*real_close)(int);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_msync)(void *, size_t, int);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_writev)(int, const struct iovec *, int);

__attribute__((constructor)) static void start(void)
{
    real_open = dlsym(RTLD_NEXT, "open");
    real_close = dlsym(RTLD_NEXT, "close");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    real_msync = dlsym(RTLD_NEXT, "msync");
    real_pwrite = dlsym(RTLD_NEXT, "pwrite");
    real_write = dlsym(RTLD_NEXT, "write");
    real_writev = dlsym(RTLD_NEXT, "writev");
    const char *path = getenv("CHAOS_DISK_ORDERS");
    if (path == NULL)
        return;
    int fd = real_open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        abort(); /* a fault that silently does nothing would be a test that cannot fail */
    void *page = mmap(NULL, sizeof(struct orders), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    real_close(fd);
    if (page == MAP_FAILED)
        abort();
    orders = page;
}

#define COUNT(what) __atomic_add_fetch(&orders->what, 1, __ATOMIC_RELAXED)

/* 0: go on; 1: done already; -1: failed, errno set. */
static int before_sync(void)
{
    if (orders->delay_millis != 0) {
        COUNT(delayed);
        usleep(orders->delay_millis * 1000);
    }
    while (orders->hang)
        usleep(10000);
    if (orders->sync_errno != 0) {
        COUNT(failed);
        errno = orders->sync_errno;
        return -1;
    }
    if (orders->swallow_syncs) {
        COUNT(swallowed);
        return 1;
    }
    COUNT(synced);
    return 0;
}

static int open_as(const char *path, int flags, mode_t mode)
{
    int wants_sync = (flags & (O_DSYNC | O_SYNC)) != 0;
    int fd = real_open(path, flags & ~(O_DSYNC | O_SYNC), mode);
    if (fd >= 0 && fd < FILES_MAX)
        is_dsync[fd] = (unsigned char)wants_sync;
    return fd;
}

#define OPEN(name)                                                          \
    int name(const char *path, int flags, ...)                              \
    {                                                                       \
        mode_t mode = 0;                                                    \
        if (flags & (O_CREAT | O_TMPFILE)) {                                \
            va_list list;                                                   \
            va_start(list, flags);                                          \
            mode = va_arg(list, mode_t);                                    \
            va_end(list);                                                   \
        }                                                                   \
        return open_as(path, flags, mode);                                  \
    }
OPEN(open)
OPEN(open64)

/* The number may be a socket's next. */
int close(int fd)
{
    if (fd >= 0 && fd < FILES_MAX)
        is_dsync[fd] = 0;
    return real_close(fd);
}

int fsync(int fd)
{
    int verdict = before_sync();
    return verdict < 0 ? -1 : verdict > 0 ? 0 : real_fsync(fd);
}

int fdatasync(int fd)
{
    int verdict = before_sync();
    return verdict < 0 ? -1 : verdict > 0 ? 0 : real_fdatasync(fd);
}

int msync(void *address, size_t length, int flags)
{
    int verdict = before_sync();
    return verdict < 0 ? -1 : verdict > 0 ? 0 : real_msync(address, length, flags);
}

static ssize_t after_write(int fd, ssize_t written)
{
    if (written < 0 || fd < 0 || fd >= FILES_MAX || !is_dsync[fd])
        return written;
    int verdict = before_sync();
    if (verdict < 0 || (verdict == 0 && real_fdatasync(fd) != 0))
        return -1;
    return written;
}

static ssize_t pwrite_as(int fd, const void *bytes, size_t count, off_t offset)
{
    if (orders->write_errno != 0) {
        COUNT(failed);
        errno = orders->write_errno;
        return -1;
    }
    return after_write(fd, real_pwrite(fd, bytes, count, offset));
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset) { return pwrite_as(fd, bytes, count, offset); }
ssize_t pwrite64(int fd, const void *bytes, size_t count, off_t offset) { return pwrite_as(fd, bytes, count, offset); }
ssize_t write(int fd, const void *bytes, size_t count) { return after_write(fd, real_write(fd, bytes, count)); }
ssize_t writev(int fd, const struct iovec *parts, int count) { return after_write(fd, real_writev(fd, parts, count)); }
