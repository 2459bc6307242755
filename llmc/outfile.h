/*
outfile -- files written so that no failure passes unseen: every error ends the process with
EXIT_DATA, naming the config key or purpose (`what`), the path and the system's own text. Also the
steps that make a set of files appear all at once or not at all: flush, rename, remove.
Not for reading, and not buffered: write whole lines or whole blocks. For whoever can go on without
the file there are functions that return the message instead, with try_ in their names.
*/
#ifndef LLMC_OUTFILE_H
#define LLMC_OUTFILE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int fd;             // -1 after outfile_close
    const char *what;   // "ckpt.dir", for messages; not copied
    char *path;
    uint32_t crc;    // CRC-32 of everything written through this handle
    int64_t bytes;   // written through this handle
} OutFile;

/* Both set SIGXFSZ to be ignored in the whole process, so that a file-size limit is an error of
   write() with a message instead of a killed process. */
OutFile outfile_create(const char *path, const char *what);   // an existing file is emptied
OutFile outfile_append(const char *path, const char *what);
void outfile_write(OutFile *f, const void *data, size_t bytes);
void outfile_sync(OutFile *f);    // what was written has reached the disk when it returns
void outfile_close(OutFile *f);   // after the data has reached the disk

/* The whole file at once: whoever reads `path` sees the old content or all of the new one. */
void outfile_replace(const char *path, const char *what, const char *data, size_t bytes);
void outfile_rename(const char *from, const char *to, const char *what);
/* A rename or a new file survives a power cut only after its directory is synced. */
void outfile_sync_directory(const char *path, const char *what);
/* Dies as make_directory would where a directory can be neither made nor written in, and makes
   nothing. */
void outfile_check_directory(const char *path, const char *what);
/* Makes this process the only one that writes `what` in a directory until it ends, however it ends.
   Dies with EXIT_CONFIG naming the other process when there is one. */
void outfile_lock_directory(const char *path, const char *what);
/* Removes a file or a directory with all it holds; nothing there is no error. */
void outfile_remove_tree(const char *path, const char *what);

/* Each as the function of its name without try_, but the process goes on: returns what is wrong, in
   the words that the other dies with (caller frees), or NULL. */
char *outfile_try_create(OutFile *f, const char *path, const char *what);
char *outfile_try_write(OutFile *f, const void *data, size_t bytes);
char *outfile_try_close(OutFile *f);   // gives up the descriptor whatever it returns
char *outfile_try_rename(const char *from, const char *to, const char *what);
char *outfile_try_sync_directory(const char *path, const char *what);
char *outfile_try_remove_tree(const char *path, const char *what);

#ifdef __cplusplus
}
#endif
#endif
