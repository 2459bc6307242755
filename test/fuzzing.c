/* fuzzing -- scratch files, refusals and maps of the fuzz targets; see fuzzing.h. Linked with
   --wrap=mmap and --wrap=munmap. */
#include "fuzzing.h"

#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__real_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
int __wrap_munmap(void *address, size_t bytes);
int __real_munmap(void *address, size_t bytes);

enum { MAX_MAPS = 64 };

static char directory[256];
static pid_t owner;   // of the directory: a child's exit leaves it
static int accepted;
static ExitCode also_refused;   // EXIT_DONE: none
static struct {
    void *items[MAX_MAPS];
    int count;
} maps;

// --- scratch files ---

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *walk) {
    (void)info, (void)type, (void)walk;
    return remove(path);
}

static void remove_directory(void) {
    if (getpid() == owner) nftw(directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

void fuzz_begin(void) {
    const char *base = getenv("TMPDIR");
    snprintf(directory, sizeof(directory), "%s/fuzz_XXXXXX", base ? base : "/tmp");
    CHECK(mkdtemp(directory), "cannot make %s", directory);
    owner = getpid();
    atexit(remove_directory);
    log_set_rank(1, 2);   // another than rank 0 says nothing
}

const char *fuzz_path(const char *name) {
    static char paths[8][512];
    static int turn;
    char *path = paths[turn++ % 8];
    snprintf(path, sizeof(paths[0]), "%s/%s", directory, name);
    return path;
}

void fuzz_put_file(const char *name, const void *data, size_t bytes) {
    const char *path = fuzz_path(name);
    FILE *f = fopen(path, "wb");
    if (!f) {
        char *parent = format_string("%.*s", (int)(strrchr(path, '/') - path), path);
        make_directory(parent, "scratch");
        free(parent);
        f = fopen(path, "wb");
    }
    CHECK(f, "cannot create %s", path);
    size_t written = fwrite(data, 1, bytes, f);
    CHECK(fclose(f) == 0 && written == bytes, "cannot write %s", path);
}

uint32_t fuzz_take(FuzzBytes *b, int num_bytes) {
    uint32_t value = 0;
    for (int i = 0; i < num_bytes && b->size > 0; i++, b->data++, b->size--) {
        value |= (uint32_t)*b->data << 8 * i;
    }
    return value;
}

// --- refusals ---

void fuzz_begin_input(void) {
    accepted = 0;
    also_refused = EXIT_DONE;
}

void fuzz_accepted(void) { accepted = 1; }

void fuzz_refuses_also(ExitCode code) { also_refused = code; }

int fuzz_is_refusal(ExitCode code, const char *message) {
    int is_code = code == EXIT_CONFIG || code == EXIT_DATA || code == also_refused;
    if (!accepted && is_code) return 1;
    fprintf(stderr, "%s code %d: %s\n",
            accepted ? "after the input was taken," : "no refusal:", (int)code, message);
    return 0;
}

// --- maps ---

void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset) {
    if (fd < 0) return __real_mmap(address, bytes, protection, flags, fd, offset);
    CHECK(maps.count < MAX_MAPS, "%d maps", maps.count);
    void *copy = malloc(bytes);
    CHECK(copy && pread(fd, copy, bytes, offset) == (ssize_t)bytes, "cannot read %zu bytes", bytes);
    return maps.items[maps.count++] = copy;
}

int __wrap_munmap(void *address, size_t bytes) {
    for (int i = 0; i < maps.count; i++) {
        if (maps.items[i] != address) continue;
        free(address);
        maps.items[i] = maps.items[--maps.count];
        return 0;
    }
    return __real_munmap(address, bytes);
}

void fuzz_free_maps(void) {
    while (maps.count > 0) free(maps.items[--maps.count]);
}
