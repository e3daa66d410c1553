/* SPDX-License-Identifier: MIT */
/* A segment is the POSIX shared memory object "/descant.NAME", which Linux keeps as a
 * file in /dev/shm. It is made as a file without a name, filled, and then linked: no
 * process sees half a segment, and a process that is killed meanwhile leaves nothing
 * behind. All pages are taken at once, for a /dev/shm that is full later would be a
 * SIGBUS.
 *
 * Only a segment's keeper removes its name. So if the name is still this object's, no
 * other process can give the name to another object before the keeper removes it:
 * object_hide has no race. */
#include "bsp/object.h"

#include "bsp/guard.h"
#include "machine/process.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define FOLDER "/dev/shm"
#define REMOVE "if no run uses it, remove " FOLDER "/descant.%s"
enum { PATH_ROOM = 160, SOME_PARTS = 32 };

_Static_assert(sizeof(struct segment_header) == 192, "docs/segment.md");
_Static_assert(sizeof(struct segment_slot) == SEGMENT_SLOT_BYTES, "docs/segment.md");
_Static_assert(sizeof(struct segment_part) == 128, "docs/segment.md");
_Static_assert(sizeof(struct segment_tally) == 64, "docs/segment.md");
_Static_assert(offsetof(struct segment_slot, tallies) == 256, "docs/segment.md");

static uint64_t round_up(uint64_t bytes, uint64_t to)
{
    return (bytes + to - 1) / to * to;
}

struct segment_header object_layout(uint64_t n, uint32_t slots, uint32_t n_parts)
{
    struct segment_header h = {.magic = SEGMENT_MAGIC,
                               .version = SEGMENT_VERSION,
                               .slots = slots,
                               .copies = slots + 2,
                               .n_parts = n_parts,
                               .n = n};
    h.slots_at = round_up(sizeof h, SEGMENT_SLOT_BYTES);
    h.parts_at = h.slots_at + slots * sizeof(struct segment_slot);
    h.copies_at =
        round_up(h.parts_at + n_parts * sizeof(struct segment_part), SEGMENT_ROUND);
    h.copy_bytes = round_up(n * sizeof(float), SEGMENT_ROUND);
    h.sums_at = h.copies_at + h.copies * h.copy_bytes;
    h.sum_bytes = h.copy_bytes;
    h.bytes = h.sums_at + (uint64_t)slots * SEGMENT_SUMS * h.sum_bytes;
    return h;
}

descant_status object_check_name(const char *name, const struct log *log)
{
    size_t n = strlen(name);
    size_t good =
        strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    if (n == 0 || n > OBJECT_NAME || good != n)
        return log_fail(
            log, DESCANT_BAD_ADDRESS,
            "segment '%s': a name has 1 to %d letters, digits, '.', '_' or '-'", name,
            OBJECT_NAME);
    return DESCANT_OK;
}

static const char *path_of(const char *name, char *path)
{
    snprintf(path, PATH_ROOM, FOLDER "/descant.%s", name);
    return path;
}

static const char *object_of(const char *name, char *object)
{
    snprintf(object, PATH_ROOM, "/descant.%s", name);
    return object;
}

/* --- an existing one --- */

static descant_status foreign(const char *name, unsigned user, const struct log *log)
{
    return log_fail(log, DESCANT_SYSTEM,
                    "segment '%s' belongs to user %u, this process to user %u", name,
                    user, (unsigned)geteuid());
}

/* All that follows the magic and the version is computed from the numbers of a
 * segment. */
static bool fits(const struct segment_header *h, uint64_t bytes)
{
    if (h->slots < 1 || h->slots > SEGMENT_SLOTS || h->n < 1 || h->n > SEGMENT_FLOATS ||
        h->n_parts < 1 || h->n_parts > SEGMENT_PARTS)
        return false;
    const struct segment_header want = object_layout(h->n, h->slots, h->n_parts);
    return bytes == want.bytes &&
           memcmp(h, &want, offsetof(struct segment_header, pid_namespace)) == 0;
}

static bool parts_follow(int fd, const struct segment_header *layout)
{
    struct segment_part parts[SOME_PARTS];
    uint64_t next = 0;
    for (uint32_t i = 0; i < layout->n_parts; i++) {
        const struct segment_part *part = &parts[i % SOME_PARTS];
        uint32_t left = layout->n_parts - i;
        size_t bytes = (left < SOME_PARTS ? left : SOME_PARTS) * sizeof *part;
        if (i % SOME_PARTS == 0 &&
            pread(fd, parts, bytes, (off_t)(layout->parts_at + i * sizeof *part)) !=
                (ssize_t)bytes)
            return false;
        if (!memchr(part->name, 0, sizeof part->name) || part->first != next ||
            part->n > layout->n - next)
            return false;
        next += part->n;
    }
    return next == layout->n;
}

static descant_status check_header(int fd, const char *name,
                                   struct segment_header *layout, const struct log *log)
{
    struct segment_header h;
    struct stat of;
    if (fstat(fd, &of) != 0)
        return log_fail(log, DESCANT_SYSTEM, "segment '%s': fstat: %s", name,
                        strerror(errno));
    if (of.st_uid != geteuid())
        return foreign(name, of.st_uid, log);
    if (pread(fd, &h, sizeof h, 0) != (ssize_t)sizeof h || h.magic != SEGMENT_MAGIC)
        return log_fail(log, DESCANT_CORRUPT,
                        "segment '%s': " FOLDER "/descant.%s is not a segment of Descant",
                        name, name);
    if (h.version != SEGMENT_VERSION)
        return log_fail(
            log, DESCANT_MISMATCH,
            "segment '%s' has version %u of the layout, this library knows %d", name,
            h.version, SEGMENT_VERSION);
    if (!fits(&h, (uint64_t)of.st_size))
        return log_fail(log, DESCANT_CORRUPT,
                        "segment '%s' is damaged: its sizes do not fit each other, or "
                        "its %lld bytes; " REMOVE,
                        name, (long long)of.st_size, name);
    if (!parts_follow(fd, &h))
        return log_fail(
            log, DESCANT_CORRUPT,
            "segment '%s' is damaged: its parts do not follow each other; " REMOVE, name,
            name);
    if (h.pid_namespace != process_namespace())
        return log_fail(log, DESCANT_MISMATCH,
                        "segment '%s' is of another PID namespace (container), where the "
                        "lives of processes cannot be seen: use one container for all",
                        name);
    *layout = h;
    return DESCANT_OK;
}

static descant_status map(struct object *object, int fd, const char *name,
                          const struct segment_header *layout, const struct log *log)
{
    struct stat of;
    if (fstat(fd, &of) != 0)
        return log_fail(log, DESCANT_SYSTEM, "segment '%s': fstat: %s", name,
                        strerror(errno));
    size_t bytes = layout->bytes;
    void *p = memory_refuse()
                  ? MAP_FAILED
                  : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return log_fail(log, DESCANT_MEMORY, "segment '%s': %zu bytes cannot be mapped",
                        name, bytes);
    *object = (struct object){p, *layout, bytes, of.st_dev, of.st_ino};
    return DESCANT_OK;
}

descant_status object_open(struct object *object, const char *name, const struct log *log)
{
    char path[PATH_ROOM];
    struct stat of;
    int fd = shm_open(object_of(name, path), O_RDWR, 0), why = errno;
    if (fd < 0 && why == ENOENT)
        return DESCANT_TIMEOUT;
    if (fd < 0 && why == EACCES && stat(path_of(name, path), &of) == 0 &&
        of.st_uid != geteuid())
        return foreign(name, of.st_uid, log);
    if (fd < 0)
        return log_fail(log, DESCANT_SYSTEM, "segment '%s' cannot be opened: %s", name,
                        strerror(why));
    struct segment_header layout;
    descant_status status = check_header(fd, name, &layout, log);
    if (status == DESCANT_OK)
        status = map(object, fd, name, &layout, log);
    close(fd);
    return status;
}

/* --- a new one --- */

static descant_status take_pages(int fd, const char *name, uint64_t bytes,
                                 const struct log *log)
{
    struct statvfs space = {0};
    uint64_t memory = machine_memory_free();
    if (memory_refuse() || bytes > memory)
        return log_fail(log, DESCANT_MEMORY,
                        "segment '%s' takes %llu bytes: %llu of memory are free", name,
                        (unsigned long long)bytes, (unsigned long long)memory);
    while (file_resize(fd, bytes, true) != 0) {
        if (errno == EINTR)
            continue;
        int why = errno;
        statvfs(FOLDER, &space);
        return log_fail(
            log, DESCANT_MEMORY,
            "segment '%s' takes %llu bytes: " FOLDER " has %llu free of %llu: %s", name,
            (unsigned long long)bytes,
            (unsigned long long)space.f_bavail * space.f_frsize,
            (unsigned long long)space.f_blocks * space.f_frsize, strerror(why));
    }
    return DESCANT_OK;
}

descant_status object_make(struct object *object, const char *name,
                           const struct segment_header *layout, int *fd,
                           const struct log *log)
{
    *fd = memory_refuse() ? -1 : open(FOLDER, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (*fd < 0)
        return log_fail(log, DESCANT_SYSTEM, "no file in " FOLDER ": %s",
                        strerror(errno));
    descant_status status = take_pages(*fd, name, layout->bytes, log);
    if (status == DESCANT_OK)
        status = map(object, *fd, name, layout, log);
    if (status != DESCANT_OK) {
        close(*fd);
        *fd = -1;
        return status;
    }
    object->layout.pid_namespace = process_namespace();
    memcpy(object->header, &object->layout, sizeof object->layout);
    return DESCANT_OK;
}

descant_status object_show(int fd, const char *name, const struct log *log)
{
    char from[64], path[PATH_ROOM];
    snprintf(from, sizeof from, "/proc/self/fd/%d", fd);
    if (linkat(AT_FDCWD, from, AT_FDCWD, path_of(name, path), AT_SYMLINK_FOLLOW) == 0)
        return DESCANT_OK;
    if (errno == EEXIST)
        return DESCANT_DUPLICATE;
    return log_fail(log, DESCANT_SYSTEM, "segment '%s' cannot be given its name: %s",
                    name, strerror(errno));
}

descant_status object_guard(const struct object *object, const char *name,
                            const struct log *log)
{
    if (guard_watch(object->header, object->bytes))
        return DESCANT_OK;
    return log_fail(log, DESCANT_SYSTEM,
                    "segment '%s': this process already guards 256 segments against "
                    "truncation, its limit; use fewer segments in one process",
                    name);
}

void object_hide(const struct object *object, const char *name)
{
    char path[PATH_ROOM];
    struct stat of;
    if (stat(path_of(name, path), &of) == 0 && of.st_ino == object->inode &&
        of.st_dev == object->device)
        shm_unlink(object_of(name, path));
}

void object_close(struct object *object)
{
    if (object->header) {
        guard_drop(object->header);
        munmap(object->header, object->bytes);
    }
    *object = (struct object){0};
}
