/* zero -- buckets, parts and their sizes; see zero.h. */
#include "zero.h"

#include <stdlib.h>
#include <string.h>

#include "common.h"

// Elements: arrays of own parts keep the alignment of the flat ones, and vectors are cut so.
enum { PART_ALIGN = 128 };

/* --- cuts --- */

/* The border of a group of rows, or of 128 elements of a vector, that is nearest to `at`. */
static int64_t nearest_border(const ParamTable *t, int64_t at, int64_t group_rows) {
    if (at == t->num_elements) return at;
    const Param *p = param_table_at(t, at);
    int64_t group = p->padded_rows > 1 ? group_rows * p->cols : PART_ALIGN;
    int64_t within = (at - p->offset + group / 2) / group * group;
    return within >= p->padded_rows * p->cols ? param_end(p) : p->offset + within;
}

static void cut(const ZeroPlan *z, const ParamTable *t, ZeroBucket *b, int64_t group_rows) {
    int64_t begin = b->range.begin, count = b->range.end - begin;
    b->cuts[0] = begin;
    b->cuts[z->size] = b->range.end;
    for (int r = 1; r < z->size; r++) {
        // In two steps: elements of a large model times ranks may not fit an int64_t by much.
        int64_t at = begin + count / z->size * r + count % z->size * r / z->size;
        int64_t border = min_i64(nearest_border(t, at, group_rows), b->range.end);
        b->cuts[r] = max_i64(border, b->cuts[r - 1]);
    }
}

/* --- buckets --- */

/* Ranges of branches that lie side by side, up to `most` elements; at least one range. */
static int ranges_of_bucket(const ZeroRange *ranges, int count, int64_t most) {
    int taken = 1;
    while (taken < count && ranges[0].is_block && ranges[taken].is_block &&
           ranges[taken].end == ranges[taken - 1].begin &&
           ranges[0].end - ranges[taken].begin <= most)
        taken++;
    return taken;
}

static ZeroBucket bucket_of(const ParamTable *t, const ZeroRange *first, const ZeroRange *last,
                            int *num_blocks) {
    ZeroBucket b;
    memset(&b, 0, sizeof(b));
    b.range = *first;
    b.range.begin = last->begin;
    b.range.closes = last->closes;
    b.decays = b.range.end <= t->num_decayed;
    b.window = !b.decays           ? WINDOW_PLAIN
               : !b.range.is_block ? WINDOW_EDGE
               : *num_blocks % 2   ? WINDOW_ODD
                                   : WINDOW_EVEN;
    *num_blocks += b.range.is_block;
    CHECK(b.decays || b.range.begin >= t->num_decayed, "a bucket with and without weight decay");
    return b;
}

static void place_windows(ZeroPlan *z) {
    int64_t sizes[NUM_ZERO_WINDOWS] = {0};
    for (int i = 0; i < z->num_buckets; i++) {
        const ZeroBucket *b = &z->buckets[i];
        int64_t count = b->range.end - b->range.begin;
        sizes[b->window] = max_i64(sizes[b->window], count);
        z->largest = max_i64(z->largest, count);
        if (b->range.is_block) z->largest_block = max_i64(z->largest_block, count);
    }
    for (int w = 0; w < NUM_ZERO_WINDOWS; w++) z->window_at[w + 1] = z->window_at[w] + sizes[w];
}

ZeroPlan zero_plan(const ParamTable *t, const ZeroRange *ranges, int count,
                   const ZeroOptions *options) {
    ZeroPlan z;
    memset(&z, 0, sizeof(z));
    z.rank = options->rank;
    z.size = options->size;
    z.level = z.size > 1 ? options->level : 0;
    z.buckets = (ZeroBucket *)xmalloc((size_t)count * sizeof(ZeroBucket));
    z.cuts = (int64_t *)xmalloc((size_t)count * ((size_t)z.size + 1) * sizeof(int64_t));
    int num_blocks = 0;
    int64_t covered = 0;
    for (int i = 0; i < count;) {
        int taken = ranges_of_bucket(ranges + i, count - i, options->bucket);
        ZeroBucket *b = &z.buckets[z.num_buckets];
        *b = bucket_of(t, &ranges[i], &ranges[i + taken - 1], &num_blocks);
        b->cuts = z.cuts + (size_t)z.num_buckets++ * ((size_t)z.size + 1);
        cut(&z, t, b, options->group_rows);
        b->own_at = z.num_own;
        z.num_own += round_up(zero_own_count(&z, b), PART_ALIGN);
        int is_cut = z.level == 3 && b->range.is_block;
        b->value_at = z.level == 3 ? z.num_values : b->range.begin;
        z.num_values +=
            is_cut ? round_up(zero_own_count(&z, b), PART_ALIGN) : b->range.end - b->range.begin;
        covered += b->range.end - b->range.begin;
        i += taken;
    }
    CHECK(covered == t->num_elements, "buckets hold %lld of %lld elements", (long long)covered,
          (long long)t->num_elements);
    place_windows(&z);
    return z;
}

void zero_free(ZeroPlan *z) {
    free(z->buckets);
    free(z->cuts);
    memset(z, 0, sizeof(*z));
}

int zero_bucket_of(const ZeroPlan *z, const Param *p) {
    for (int i = 0; i < z->num_buckets; i++) {
        const ZeroRange *r = &z->buckets[i].range;
        if (p->offset >= r->begin && p->offset < r->end) return i;
    }
    CHECK(0, "%s is in no bucket", p->name);
    return -1;
}

ZeroPiece zero_piece(const ZeroPlan *z, const Param *p, int rank) {
    const int64_t *cuts = z->buckets[zero_bucket_of(z, p)].cuts;
    int64_t end_of_p = p->padded_rows * p->cols;
    int64_t begin = min_i64(max_i64(cuts[rank] - p->offset, 0), end_of_p);
    int64_t end = min_i64(max_i64(cuts[rank + 1] - p->offset, 0), end_of_p);
    ZeroPiece piece = {begin, end - begin};
    return piece;
}

/* --- memory --- */

static int64_t bucket_count(const ZeroBucket *b) { return b->range.end - b->range.begin; }

static int is_gathered(const ZeroPlan *z, const ZeroBucket *b) {
    return z->level == 3 && b->range.is_block;
}

Tensor zero_gradients(const ZeroPlan *z, const ZeroBucket *b, const ParamTable *t) {
    if (z->level < 2) return tensor_span(t->grad, b->range.begin, bucket_count(b));
    return tensor_span(t->grad_windows, z->window_at[b->window], bucket_count(b));
}

Tensor zero_weights(const ZeroPlan *z, const ZeroBucket *b, const ParamTable *t) {
    if (!is_gathered(z, b)) return tensor_span(t->value, b->value_at, bucket_count(b));
    int64_t at = b->window == WINDOW_ODD ? z->largest_block : 0;
    return tensor_span(t->value_windows, at, bucket_count(b));
}

Tensor zero_part(const ZeroPlan *z, const ZeroBucket *b, Tensor bucket) {
    return tensor_span(bucket, b->cuts[z->rank] - b->range.begin, zero_own_count(z, b));
}

Tensor zero_sum(const ZeroPlan *z, const ZeroBucket *b, const ParamTable *t) {
    if (z->level < 2) return zero_part(z, b, zero_gradients(z, b, t));
    return tensor_span(t->grad, b->own_at, zero_own_count(z, b));
}

ZeroKept zero_kept(const ZeroPlan *z, const ZeroBucket *b, const ParamTable *t) {
    int64_t count = zero_own_count(z, b), at = z->level == 0 ? b->cuts[z->rank] : b->own_at;
    ZeroKept k;
    k.value = is_gathered(z, b) ? tensor_span(t->value, b->value_at, count)
                                : zero_part(z, b, zero_weights(z, b, t));
    // f32 values are the masters themselves.
    k.master = t->dtype == DT_F32 ? k.value : tensor_span(t->master, at, count);
    k.m = tensor_span(t->m, at, count);
    k.v = tensor_span(t->v, at, count);
    return k;
}

/* Elements [begin, begin + count) of p out of a part of its bucket that begins with element `first`
   of the flat arrays; rows where p is a matrix. */
static Tensor piece_view(Tensor part, int64_t first, const Param *p, ZeroPiece piece) {
    Tensor none = {0};
    if (tensor_empty(part) || piece.count == 0) return none;
    Tensor t = tensor_span(part, p->offset + piece.begin - first, piece.count);
    if (p->padded_rows == 1) return t;
    return tensor_view(t.data, t.dtype, piece.count / p->cols, p->cols);
}

static void view_param(const ZeroPlan *z, const ParamTable *t, Param *p) {
    const ZeroBucket *b = &z->buckets[zero_bucket_of(z, p)];
    ZeroPiece all = {0, p->padded_rows * p->cols}, own = zero_piece(z, p, z->rank);
    ZeroKept kept = zero_kept(z, b, t);
    int64_t first = b->cuts[z->rank];
    p->value = piece_view(zero_weights(z, b, t), b->range.begin, p, all);
    p->grad = piece_view(zero_gradients(z, b, t), b->range.begin, p, all);
    p->master = piece_view(kept.master, first, p, own);
    p->m = piece_view(kept.m, first, p, own);
    p->v = piece_view(kept.v, first, p, own);
    p->kept_from = own.begin;
    if (is_gathered(z, b)) p->kept_value = piece_view(kept.value, first, p, own);
}

void zero_place(const ZeroPlan *z, ParamTable *t, Arena *parameters, Arena *gradients,
                Arena *optimizer) {
    if (z->level == 0) {
        param_table_place(t, parameters, gradients, optimizer, 1);
        return;
    }
    int64_t windows = z->window_at[NUM_ZERO_WINDOWS];
    t->value = arena_tensor(parameters, t->dtype, 1, z->num_values);
    t->master = t->dtype == DT_F32 ? t->value : arena_tensor(parameters, DT_F32, 1, z->num_own);
    if (z->level == 3) t->value_windows = arena_tensor(parameters, t->dtype, 2, z->largest_block);
    t->grad = arena_tensor(gradients, DT_F32, 1, z->level < 2 ? t->num_elements : z->num_own);
    if (z->level >= 2) t->grad_windows = arena_tensor(gradients, DT_F32, 1, windows);
    t->m = arena_tensor(optimizer, DT_F32, 1, z->num_own);
    t->v = arena_tensor(optimizer, DT_F32, 1, z->num_own);
    for (int i = 0; i < t->count; i++) view_param(z, t, &t->params[i]);
}

static int64_t bytes_of(DType dtype, int64_t count) { return (int64_t)dtype_bytes(dtype, count); }

ZeroBytes zero_bytes(const ZeroPlan *z, const ParamTable *t) {
    int64_t all = t->num_elements, own = z->level >= 1 ? z->num_own : all;
    ZeroBytes b;
    b.values = bytes_of(t->dtype, z->num_values + (z->level == 3 ? 2 * z->largest_block : 0));
    b.masters = t->dtype == DT_F32 ? 0 : bytes_of(DT_F32, own);
    b.moments = 2 * bytes_of(DT_F32, own);
    b.gradients = bytes_of(DT_F32, z->level >= 2 ? own + z->window_at[NUM_ZERO_WINDOWS] : all);
    return b;
}

/* --- traffic --- */

static int64_t sent(const ZeroPlan *z, int64_t bytes) { return bytes - bytes / z->size; }

ZeroTraffic zero_traffic(const ZeroPlan *z, const ParamTable *t, DType gradients, int accumulation,
                         int64_t weight_bytes) {
    ZeroTraffic traffic = {0, 0};
    if (z->size == 1) return traffic;
    int64_t blocks = 0;
    for (int i = 0; i < z->num_buckets; i++) {
        const ZeroRange *r = &z->buckets[i].range;
        if (r->is_block) blocks += r->end - r->begin;
    }
    int64_t once = sent(z, bytes_of(gradients, t->num_elements));
    if (z->level == 0) {
        traffic.sums = 2 * once;   // to the owners, and from them to all
        return traffic;
    }
    traffic.sums = z->level == 1 ? once : accumulation * once;
    if (z->level < 3) {
        traffic.values = sent(z, bytes_of(t->dtype, t->num_elements));
        return traffic;
    }
    // Before each branch's forward, and again before its backward.
    int64_t weights = weight_bytes > 0 ? weight_bytes : bytes_of(t->dtype, blocks);
    traffic.values =
        sent(z, bytes_of(t->dtype, t->num_elements - blocks)) + 2 * accumulation * sent(z, weights);
    return traffic;
}
