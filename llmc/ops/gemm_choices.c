/* gemm_choices -- lines, and lists of them; see gemm_choices.h. */
#include "gemm_choices.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "../common.h"

enum { MAX_LINE = 512 };

char *gemm_choices_header(const Device *d) {
    return format_string("gemm algorithms 1 | %s, sm_%d | %s\n"
                         "m n k types a b d, a b k-contiguous, bias accumulate slices, aligns a b "
                         "d, workspace TFLOP/s algo\n",
                         d->name, d->compute_capability, d->libraries);
}

char *gemm_choice_line(const GemmChoice *c) {
    const GemmKey *k = &c->key;
    char algo[16 * GEMM_ALGO_WORDS + 1];
    for (int i = 0; i < GEMM_ALGO_WORDS; i++)
        snprintf(algo + (size_t)i * 16, 17, "%016" PRIx64, c->algo[i]);
    return format_string("%" PRId64 " %" PRId64 " %" PRId64 " %d %d %d %d %d %d %d %d %d %d %d "
                         "%" PRIu64 " %.4g %s\n",
                         k->m, k->n, k->k, k->a_type, k->b_type, k->d_type, k->a_k_contiguous,
                         k->b_k_contiguous, k->has_bias, k->accumulate, k->slices, k->a_align,
                         k->b_align, k->d_align, c->workspace_bytes, c->tflops, algo);
}

static int is_flag(int32_t v) { return v == 0 || v == 1; }

static int is_alignment(int32_t v) { return v > 0 && v <= 256 && (v & (v - 1)) == 0; }

/* Whether there can be such a product. */
static int is_key(const GemmKey *k) {
    return k->m > 0 && k->n > 0 && k->k > 0 && k->a_type >= 0 && k->b_type >= 0 && k->d_type >= 0 &&
           is_flag(k->a_k_contiguous) && is_flag(k->b_k_contiguous) && is_flag(k->has_bias) &&
           is_flag(k->accumulate) && k->slices > 0 && is_alignment(k->a_align) &&
           is_alignment(k->b_align) && is_alignment(k->d_align);
}

/* Whether the line, without its newline, is one. What sscanf is generous about, such as signs,
   spaces and what stands behind, shows when the choice is written again. */
static int parse_line(const char *line, size_t length, GemmChoice *c) {
    char copy[MAX_LINE], algo[16 * GEMM_ALGO_WORDS + 1] = "";
    if (length >= sizeof(copy)) return 0;
    memcpy(copy, line, length);
    copy[length] = '\0';
    memset(c, 0, sizeof(*c));
    GemmKey *k = &c->key;
    int found = sscanf(copy,
                       "%" SCNd64 " %" SCNd64 " %" SCNd64 " %d %d %d %d %d %d %d %d %d %d %d "
                       "%" SCNu64 " %lf %128s",
                       &k->m, &k->n, &k->k, &k->a_type, &k->b_type, &k->d_type, &k->a_k_contiguous,
                       &k->b_k_contiguous, &k->has_bias, &k->accumulate, &k->slices, &k->a_align,
                       &k->b_align, &k->d_align, &c->workspace_bytes, &c->tflops, algo);
    if (found != 17 || !is_key(k) || !(c->tflops >= 0 && c->tflops < 1e6)) return 0;
    for (int i = 0; i < GEMM_ALGO_WORDS && strlen(algo) == sizeof(algo) - 1; i++)
        sscanf(algo + (size_t)i * 16, "%16" SCNx64, &c->algo[i]);
    char *again = gemm_choice_line(c);
    int same = strlen(again) == length + 1 && memcmp(again, line, length) == 0;
    free(again);
    return same;
}

const GemmChoice *gemm_choices_find(const GemmChoices *list, const GemmKey *key) {
    for (int i = 0; i < list->count; i++) {
        if (memcmp(&list->items[i].key, key, sizeof(*key)) == 0) return &list->items[i];
    }
    return NULL;
}

int gemm_choices_add(GemmChoices *list, const GemmChoice *c) {
    if (list->count == GEMM_CHOICES_MAX || gemm_choices_find(list, &c->key)) return 0;
    size_t bytes = (size_t)(list->count + 1) * sizeof(GemmChoice);
    list->items = (GemmChoice *)xrealloc(list->items, bytes);
    list->items[list->count++] = *c;
    return 1;
}

int gemm_choices_read(GemmChoices *list, const char *text, const char *header) {
    size_t header_bytes = strlen(header);
    if (strncmp(text, header, header_bytes) != 0) return 0;
    int added = 0, damaged = 0;
    const char *line = text + header_bytes;
    while (*line && list->count < GEMM_CHOICES_MAX) {
        GemmChoice choice;
        size_t length = strcspn(line, "\n");
        // A line without its end may lack more.
        if (line[length] && parse_line(line, length, &choice))
            added += gemm_choices_add(list, &choice);
        else damaged++;
        line += length + (line[length] != '\0');
    }
    if (damaged) log_warn("%d damaged lines of GEMM algorithms are left out", damaged);
    if (*line) {
        log_warn("more than %d GEMM algorithms: those after are left out", GEMM_CHOICES_MAX);
    }
    return added;
}

char *gemm_choices_text(const GemmChoices *list, const char *header) {
    size_t used = strlen(header);
    char *text = xstrdup(header);
    for (int i = 0; i < list->count; i++) {
        char *line = gemm_choice_line(&list->items[i]);
        size_t bytes = strlen(line);
        text = (char *)xrealloc(text, used + bytes + 1);
        memcpy(text + used, line, bytes + 1);
        used += bytes;
        free(line);
    }
    return text;
}
