/* A library that is loaded before the node's own libc (LD_PRELOAD), for tests alone. It does four things:
 *
 * Lost writes. Everything that changes a file or a directory below PREFIXD_SHIM_DATA is first written down in
 * PREFIXD_SHIM_JOURNAL so that it can be undone, and crossed out when the file or the directory is fsynced. After a
 * SIGKILL the journal holds exactly what a power loss may take away; tests/chaos/shim.rs takes it away. What is read
 * is always the file itself, as on a running machine. PREFIXD_SHIM_FSYNC=ignored crosses nothing out: an fsync that
 * says yes and does nothing; =ignored:NAME does so for files of that name alone.
 *
 * Failed syncs. PREFIXD_SHIM_SYNC_FAILS=NAME:FILE: while FILE is there, the next sync of a file of that name fails with EIO,
 * once: FILE goes with it. What was not synced is not crossed out, so that it can be taken as a disk takes it that has dropped
 * the pages.
 *
 * Syncs that don't end. PREFIXD_SHIM_SYNC_WAITS=NAME:FILE: while FILE is there, syncs of a file of that name wait.
 *
 * Wrong clocks. The wall clock is off by as many microseconds as the eight bytes in the file PREFIXD_SHIM_CLOCK say, now
 * and whenever they change. The monotonic clock is left alone.
 *
 * It must never let a change through that it has not written down: what it does not understand ends the process.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define LOCKS 64
#define INODES 65536

static char data_dir[PATH_MAX], journal_dir[PATH_MAX], ignored_name[256], failing_name[256], failing_switch[PATH_MAX];
static char waiting_name[256], waiting_switch[PATH_MAX];
static size_t data_len;
static int journals, ignores;
static const volatile int64_t *clock_offset_us;
static pthread_mutex_t file_locks[LOCKS], sync_locks[LOCKS];
static pthread_mutex_t dir_lock = PTHREAD_MUTEX_INITIALIZER;
/* Inodes below the data directory that were opened: open addressing, 0 is free. Only ever grows. */
static _Atomic uint64_t inodes[INODES];
static _Atomic uint64_t stashes;

static void *next(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) _exit(97);
    return found;
}

/* The libc's own function, looked up once. */
#define REAL(type, name, args)                                       \
    static type(*real_##name) args;                                  \
    if (!real_##name) *(void **)(&real_##name) = next(#name)

static void give_up(const char *what, const char *path) {
    fprintf(stderr, "shim: panicked at %s of %s: %s\n", what, path, strerror(errno));
    _exit(98);
}

/* NAME:FILE of an environment variable, if it is set. */
static void read_switch(const char *variable, char name[256], char file[PATH_MAX]) {
    const char *value = getenv(variable), *colon = value ? strchr(value, ':') : NULL;
    if (!colon) return;
    snprintf(name, 256, "%.*s", (int)(colon - value), value);
    snprintf(file, PATH_MAX, "%s", colon + 1);
}

__attribute__((constructor)) static void begin(void) {
    for (int i = 0; i < LOCKS; i++) {
        pthread_mutex_init(&file_locks[i], NULL);
        pthread_mutex_init(&sync_locks[i], NULL);
    }
    const char *data = getenv("PREFIXD_SHIM_DATA"), *journal = getenv("PREFIXD_SHIM_JOURNAL");
    const char *mode = getenv("PREFIXD_SHIM_FSYNC"), *clock = getenv("PREFIXD_SHIM_CLOCK");
    if (data && journal) {
        snprintf(data_dir, sizeof data_dir, "%s", data);
        snprintf(journal_dir, sizeof journal_dir, "%s", journal);
        data_len = strlen(data_dir);
        stashes = (uint64_t)getpid() << 32;
        journals = 1;
    }
    if (mode && strncmp(mode, "ignored", 7) == 0) {
        ignores = 1;
        if (mode[7] == ':') snprintf(ignored_name, sizeof ignored_name, "%s", mode + 8);
    }
    read_switch("PREFIXD_SHIM_SYNC_FAILS", failing_name, failing_switch);
    read_switch("PREFIXD_SHIM_SYNC_WAITS", waiting_name, waiting_switch);
    if (clock) {
        int fd = open(clock, O_RDONLY | O_CLOEXEC);
        if (fd < 0) give_up("the clock", clock);
        void *at = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
        if (at == MAP_FAILED) give_up("mapping the clock", clock);
        close(fd);
        clock_offset_us = at;
    }
}

/* ---- the wall clock ---- */

EXPORT int clock_gettime(clockid_t id, struct timespec *to) {
    REAL(int, clock_gettime, (clockid_t, struct timespec *));
    int result = real_clock_gettime(id, to);
    if (result == 0 && clock_offset_us && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        int64_t ns = to->tv_nsec + (*clock_offset_us % 1000000) * 1000;
        to->tv_sec += *clock_offset_us / 1000000;
        if (ns < 0) { ns += 1000000000; to->tv_sec--; }
        if (ns >= 1000000000) { ns -= 1000000000; to->tv_sec++; }
        to->tv_nsec = ns;
    }
    return result;
}

EXPORT int gettimeofday(struct timeval *restrict to, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    to->tv_sec = now.tv_sec;
    to->tv_usec = now.tv_nsec / 1000;
    return 0;
}

EXPORT time_t time(time_t *to) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    if (to) *to = now.tv_sec;
    return now.tv_sec;
}

/* ---- what is journaled ---- */

/* The absolute path of (dir fd, path). */
static int resolve(int dir, const char *path, char *to) {
    if (path[0] == '/') return snprintf(to, PATH_MAX, "%s", path) < PATH_MAX ? 0 : -1;
    char base[PATH_MAX];
    if (dir == AT_FDCWD) {
        if (!getcwd(base, sizeof base)) return -1;
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
        ssize_t n = readlink(link, base, sizeof base - 1);
        if (n < 0) return -1;
        base[n] = 0;
    }
    return snprintf(to, PATH_MAX, "%s/%s", base, path) < PATH_MAX ? 0 : -1;
}

static int is_below(const char *path) {
    return journals && strncmp(path, data_dir, data_len) == 0 && path[data_len] == '/';
}

static void remember(uint64_t inode) {
    for (uint64_t at = inode * 0x9E3779B97F4A7C15u;; at++) {
        uint64_t seen = 0;
        if (atomic_compare_exchange_strong_explicit(&inodes[at % INODES], &seen, inode, memory_order_seq_cst,
                                                    memory_order_seq_cst) ||
            seen == inode)
            return;
    }
}

static int is_remembered(uint64_t inode) {
    for (uint64_t at = inode * 0x9E3779B97F4A7C15u;; at++) {
        uint64_t seen = inodes[at % INODES];
        if (seen == inode) return 1;
        if (seen == 0) return 0;
    }
}

/* Whether writes to this fd are journaled; its inode and length if so. */
static int is_journaled(int fd, struct stat *stat) {
    return journals && fstat(fd, stat) == 0 && S_ISREG(stat->st_mode) && is_remembered(stat->st_ino);
}

static void append(const char *name, const struct iovec *parts, int count) {
    char path[PATH_MAX + 300];
    size_t want = 0;
    for (int i = 0; i < count; i++) want += parts[i].iov_len;
    REAL(int, open, (const char *, int, ...));
    REAL(ssize_t, writev, (int, const struct iovec *, int));
    snprintf(path, sizeof path, "%s/%s", journal_dir, name);
    int fd = real_open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0) give_up("the journal", path);
    if (real_writev(fd, parts, count) != (ssize_t)want) give_up("the journal", path);
    close(fd);
}

/* Writes down what [offset, end) holds and how long the file is, before it changes. */
static void journal_range(int fd, const struct stat *stat, uint64_t offset, uint64_t end) {
    uint64_t old_len = (uint64_t)stat->st_size;
    uint64_t upto = end < old_len ? end : old_len;
    uint64_t bytes = upto > offset ? upto - offset : 0;
    uint64_t head[4] = {offset, end - offset, old_len, bytes};
    char *before = malloc(bytes + 1), name[64];
    /* The fd may be for writing only. */
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    REAL(int, open, (const char *, int, ...));
    int reading = bytes ? real_open(link, O_RDONLY | O_CLOEXEC) : -1;
    for (uint64_t got = 0; got < bytes;) {
        ssize_t n = pread(reading, before + got, bytes - got, (off_t)(offset + got));
        if (n <= 0) give_up("reading what is to be overwritten", link);
        got += (uint64_t)n;
    }
    if (reading >= 0) close(reading);
    struct iovec parts[2] = {{head, sizeof head}, {before, bytes}};
    snprintf(name, sizeof name, "w-%llu", (unsigned long long)stat->st_ino);
    append(name, parts, 2);
    free(before);
}

/* A change of a directory: one line of its journal. */
static void journal_entry(const char *path, char what, const char *other, const char *stash) {
    char dir[PATH_MAX], line[3 * NAME_MAX + 100], name[64];
    snprintf(dir, sizeof dir, "%s", path);
    char *slash = strrchr(dir, '/');
    *slash = 0;
    struct stat stat_;
    if (stat(dir, &stat_) != 0) return;
    int n = snprintf(line, sizeof line, "%c/%s/%s/%s\n", what, slash + 1, other, stash);
    snprintf(name, sizeof name, "d-%llu", (unsigned long long)stat_.st_ino);
    struct iovec part = {line, (size_t)n};
    append(name, &part, 1);
}

/* Keeps a file that is about to lose its name. */
static void stash(const char *path, char *name) {
    char to[PATH_MAX + 100];
    char dir[PATH_MAX];
    snprintf(dir, sizeof dir, "%s", path);
    *strrchr(dir, '/') = 0;
    struct stat stat_;
    if (stat(dir, &stat_) != 0) give_up("the directory", dir);
    snprintf(name, 100, "s-%llu-%llu", (unsigned long long)stat_.st_ino, (unsigned long long)++stashes);
    snprintf(to, sizeof to, "%s/%s", journal_dir, name);
    if (link(path, to) != 0) give_up("keeping", path);
}

/* ---- opening ---- */

static int opened(int dir, const char *path, int flags, mode_t mode) {
    REAL(int, openat, (int, const char *, int, ...));
    char whole[PATH_MAX];
    if (!journals || resolve(dir, path, whole) != 0 || !is_below(whole)) return real_openat(dir, path, flags, mode);
    struct stat before;
    pthread_mutex_lock(&dir_lock);
    int existed = stat(whole, &before) == 0;
    if (existed && S_ISREG(before.st_mode)) {
        remember(before.st_ino);
        if ((flags & O_TRUNC) && before.st_size > 0) {
            int fd = real_openat(AT_FDCWD, whole, O_RDONLY | O_CLOEXEC);
            if (fd < 0) give_up("opening what is to be truncated", whole);
            pthread_mutex_lock(&file_locks[before.st_ino % LOCKS]);
            journal_range(fd, &before, 0, (uint64_t)before.st_size);
            pthread_mutex_unlock(&file_locks[before.st_ino % LOCKS]);
            close(fd);
        }
    }
    int fd = real_openat(dir, path, flags, mode);
    int error = errno;
    struct stat after;
    if (fd >= 0 && fstat(fd, &after) == 0 && S_ISREG(after.st_mode)) {
        remember(after.st_ino);
        if (!existed) journal_entry(whole, 'C', "", "");
    }
    pthread_mutex_unlock(&dir_lock);
    errno = error;
    return fd;
}

#define MODE(flags)                                                  \
    mode_t mode = 0;                                                 \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {                         \
        va_list list;                                                \
        va_start(list, flags);                                       \
        mode = va_arg(list, mode_t);                                 \
        va_end(list);                                                \
    }

EXPORT int open(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
EXPORT int open64(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
EXPORT int openat(int dir, const char *path, int flags, ...) { MODE(flags) return opened(dir, path, flags, mode); }
EXPORT int openat64(int dir, const char *path, int flags, ...) { MODE(flags) return opened(dir, path, flags, mode); }

/* ---- writing ---- */

static uint64_t write_offset(int fd, const struct stat *stat) {
    if (fcntl(fd, F_GETFL) & O_APPEND) return (uint64_t)stat->st_size;
    return (uint64_t)lseek(fd, 0, SEEK_CUR);
}

/* Runs `call` with the range written down, and nobody else at the file meanwhile. */
#define JOURNALED(fd, offset_, bytes_, call)                                     \
    struct stat stat;                                                            \
    if (!is_journaled(fd, &stat)) return call;                                   \
    pthread_mutex_t *lock = &file_locks[stat.st_ino % LOCKS];                    \
    pthread_mutex_lock(lock);                                                    \
    fstat(fd, &stat);                                                            \
    uint64_t from = (offset_);                                                   \
    journal_range(fd, &stat, from, from + (bytes_));                             \
    ssize_t result = call;                                                       \
    int error = errno;                                                           \
    pthread_mutex_unlock(lock);                                                  \
    errno = error;                                                               \
    return result

EXPORT ssize_t write(int fd, const void *from_, size_t bytes) {
    REAL(ssize_t, write, (int, const void *, size_t));
    JOURNALED(fd, write_offset(fd, &stat), bytes, real_write(fd, from_, bytes));
}

EXPORT ssize_t pwrite(int fd, const void *from_, size_t bytes, off_t offset) {
    REAL(ssize_t, pwrite, (int, const void *, size_t, off_t));
    JOURNALED(fd, (uint64_t)offset, bytes, real_pwrite(fd, from_, bytes, offset));
}

EXPORT ssize_t pwrite64(int fd, const void *from_, size_t bytes, off64_t offset) {
    return pwrite(fd, from_, bytes, offset);
}

static size_t total(const struct iovec *parts, int count) {
    size_t bytes = 0;
    for (int i = 0; i < count; i++) bytes += parts[i].iov_len;
    return bytes;
}

EXPORT ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(ssize_t, writev, (int, const struct iovec *, int));
    JOURNALED(fd, write_offset(fd, &stat), total(parts, count), real_writev(fd, parts, count));
}

EXPORT ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    REAL(ssize_t, pwritev, (int, const struct iovec *, int, off_t));
    JOURNALED(fd, (uint64_t)offset, total(parts, count), real_pwritev(fd, parts, count, offset));
}

EXPORT ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) {
    return pwritev(fd, parts, count, offset);
}

/* Cut: what is cut off is written down. Grown: the old length is. */
static uint64_t cut_end(const struct stat *stat, off_t len) {
    return len < stat->st_size ? (uint64_t)stat->st_size : (uint64_t)len;
}

EXPORT int ftruncate(int fd, off_t len) {
    REAL(int, ftruncate, (int, off_t));
    JOURNALED(fd, (uint64_t)(len < stat.st_size ? len : stat.st_size), cut_end(&stat, len) - from,
              real_ftruncate(fd, len));
}

EXPORT int ftruncate64(int fd, off64_t len) { return ftruncate(fd, len); }

static int refuse(int fd, const char *what) {
    struct stat stat;
    if (is_journaled(fd, &stat)) give_up(what, "a journaled file");
    return 0;
}

EXPORT int fallocate(int fd, int mode, off_t offset, off_t len) {
    REAL(int, fallocate, (int, int, off_t, off_t));
    refuse(fd, "fallocate");
    return real_fallocate(fd, mode, offset, len);
}

EXPORT int fallocate64(int fd, int mode, off64_t offset, off64_t len) { return fallocate(fd, mode, offset, len); }

EXPORT int posix_fallocate(int fd, off_t offset, off_t len) {
    REAL(int, posix_fallocate, (int, off_t, off_t));
    refuse(fd, "posix_fallocate");
    return real_posix_fallocate(fd, offset, len);
}

EXPORT int posix_fallocate64(int fd, off64_t offset, off64_t len) { return posix_fallocate(fd, offset, len); }

EXPORT ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t len, unsigned flags) {
    REAL(ssize_t, copy_file_range, (int, off64_t *, int, off64_t *, size_t, unsigned));
    refuse(out, "copy_file_range");
    return real_copy_file_range(in, from, out, to, len, flags);
}

/* ---- syncing ---- */

static int is_named(int fd, const char *name) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    const char *slash = strrchr(path, '/');
    return slash && strcmp(slash + 1, name) == 0;
}

static int is_ignored(int fd) { return ignores && (!ignored_name[0] || is_named(fd, ignored_name)); }

/* Whoever takes the switch away is the one that fails. */
static int is_to_fail(int fd) {
    REAL(int, unlink, (const char *));
    return failing_name[0] && is_named(fd, failing_name) && real_unlink(failing_switch) == 0;
}

/* Looks again a hundred times a second, as long as it takes. */
static void wait_for_disk(int fd) {
    const struct timespec between = {0, 10000000};
    if (!waiting_name[0] || !is_named(fd, waiting_name)) return;
    while (access(waiting_switch, F_OK) == 0) nanosleep(&between, NULL);
}

static void in_journal(char *to, const char *kind, uint64_t inode) {
    snprintf(to, PATH_MAX + 100, "%s/%s-%llu", journal_dir, kind, (unsigned long long)inode);
}

static void sync_dir(uint64_t inode) {
    char path[PATH_MAX + 100], prefix[64];
    REAL(int, unlink, (const char *));
    pthread_mutex_lock(&dir_lock);
    in_journal(path, "d", inode);
    real_unlink(path);
    snprintf(prefix, sizeof prefix, "s-%llu-", (unsigned long long)inode);
    DIR *dir = opendir(journal_dir);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0) continue;
        char stashed[PATH_MAX + 300];
        snprintf(stashed, sizeof stashed, "%s/%s", journal_dir, entry->d_name);
        real_unlink(stashed);
    }
    if (dir) closedir(dir);
    pthread_mutex_unlock(&dir_lock);
}

static int synced(int fd, int (*real)(int)) {
    struct stat stat;
    wait_for_disk(fd);
    if (is_to_fail(fd)) {
        errno = EIO;
        return -1;
    }
    if (!journals || fstat(fd, &stat) != 0) return real(fd);
    if (is_ignored(fd)) return 0;
    if (S_ISDIR(stat.st_mode)) {
        sync_dir(stat.st_ino);
        return 0;
    }
    if (!S_ISREG(stat.st_mode) || !is_remembered(stat.st_ino)) return real(fd);
    REAL(int, unlink, (const char *));
    REAL(int, rename, (const char *, const char *));
    char now[PATH_MAX + 100], old[PATH_MAX + 100];
    in_journal(now, "w", stat.st_ino);
    in_journal(old, "o", stat.st_ino);
    pthread_mutex_lock(&sync_locks[stat.st_ino % LOCKS]);
    /* What is written while the sync runs is not covered by it. */
    pthread_mutex_lock(&file_locks[stat.st_ino % LOCKS]);
    int any = real_rename(now, old) == 0;
    pthread_mutex_unlock(&file_locks[stat.st_ino % LOCKS]);
    /* The disk itself is not asked: a SIGKILL takes nothing from the page cache. */
    if (any) real_unlink(old);
    pthread_mutex_unlock(&sync_locks[stat.st_ino % LOCKS]);
    return 0;
}

EXPORT int fsync(int fd) {
    REAL(int, fsync, (int));
    return synced(fd, real_fsync);
}

EXPORT int fdatasync(int fd) {
    REAL(int, fdatasync, (int));
    return synced(fd, real_fdatasync);
}

/* ---- names ---- */

static int renamed(int dir, const char *from, int to_dir, const char *to) {
    REAL(int, renameat, (int, const char *, int, const char *));
    char a[PATH_MAX], b[PATH_MAX], kept[100] = "";
    if (!journals || resolve(dir, from, a) || resolve(to_dir, to, b) || !is_below(b))
        return real_renameat(dir, from, to_dir, to);
    size_t parent = (size_t)(strrchr(a, '/') - a);
    if (parent != (size_t)(strrchr(b, '/') - b) || strncmp(a, b, parent) != 0) give_up("a rename across directories", b);
    pthread_mutex_lock(&dir_lock);
    struct stat old;
    if (stat(b, &old) == 0 && S_ISREG(old.st_mode)) stash(b, kept);
    journal_entry(b, 'R', strrchr(a, '/') + 1, kept);
    int result = real_renameat(dir, from, to_dir, to), error = errno;
    if (result != 0) give_up("a rename that was written down", b);
    pthread_mutex_unlock(&dir_lock);
    errno = error;
    return result;
}

EXPORT int rename(const char *from, const char *to) { return renamed(AT_FDCWD, from, AT_FDCWD, to); }
EXPORT int renameat(int dir, const char *from, int to_dir, const char *to) { return renamed(dir, from, to_dir, to); }

EXPORT int renameat2(int dir, const char *from, int to_dir, const char *to, unsigned flags) {
    REAL(int, renameat2, (int, const char *, int, const char *, unsigned));
    char b[PATH_MAX];
    if (journals && resolve(to_dir, to, b) == 0 && is_below(b) && flags) give_up("renameat2 with flags", b);
    return flags ? real_renameat2(dir, from, to_dir, to, flags) : renamed(dir, from, to_dir, to);
}

static int unlinked(int dir, const char *path, int flags) {
    REAL(int, unlinkat, (int, const char *, int));
    char whole[PATH_MAX], kept[100] = "";
    if (!journals || resolve(dir, path, whole) || !is_below(whole)) return real_unlinkat(dir, path, flags);
    pthread_mutex_lock(&dir_lock);
    struct stat stat_;
    int is_file = lstat(whole, &stat_) == 0 && S_ISREG(stat_.st_mode);
    if (is_file && !(flags & AT_REMOVEDIR)) stash(whole, kept);
    int result = real_unlinkat(dir, path, flags), error = errno;
    if (result == 0) journal_entry(whole, flags & AT_REMOVEDIR ? 'D' : 'U', "", kept);
    pthread_mutex_unlock(&dir_lock);
    errno = error;
    return result;
}

EXPORT int unlink(const char *path) { return unlinked(AT_FDCWD, path, 0); }
EXPORT int unlinkat(int dir, const char *path, int flags) { return unlinked(dir, path, flags); }
EXPORT int rmdir(const char *path) { return unlinked(AT_FDCWD, path, AT_REMOVEDIR); }

static int made(int dir, const char *path, mode_t mode) {
    REAL(int, mkdirat, (int, const char *, mode_t));
    char whole[PATH_MAX];
    if (!journals || resolve(dir, path, whole) || !is_below(whole)) return real_mkdirat(dir, path, mode);
    pthread_mutex_lock(&dir_lock);
    int result = real_mkdirat(dir, path, mode), error = errno;
    if (result == 0) journal_entry(whole, 'M', "", "");
    pthread_mutex_unlock(&dir_lock);
    errno = error;
    return result;
}

EXPORT int mkdir(const char *path, mode_t mode) { return made(AT_FDCWD, path, mode); }
EXPORT int mkdirat(int dir, const char *path, mode_t mode) { return made(dir, path, mode); }
