/* tensor -- views, arenas and the parameter table; see tensor.h. */
#include "tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "rng.h"

enum { ARENA_ALIGN = 256, PARAM_ALIGN = 128 };
static const size_t MAX_ARENA = (size_t)1 << 60;   // bytes; some arenas together fit an int64_t

Tensor tensor_span(Tensor flat, int64_t begin, int64_t count) {
    if (tensor_empty(flat)) return flat;
    return tensor_view((char *)flat.data + dtype_bytes(flat.dtype, begin), flat.dtype, 1, count);
}

Tensor tensor_rows(Tensor t, int64_t begin, int64_t rows) {
    CHECK(begin >= 0 && rows >= 0 && begin + rows <= t.rows, "rows [%lld, %lld) of %lld",
          (long long)begin, (long long)(begin + rows), (long long)t.rows);
    return tensor_view((char *)t.data + dtype_bytes(t.dtype, begin * t.cols), t.dtype, rows,
                       t.cols);
}

void tensor_expect(Tensor t, const char *what, DType dtype, int64_t rows, int64_t cols) {
    CHECK(t.data != NULL, "%s is empty, expected (%lld,%lld) %s", what, (long long)rows,
          (long long)cols, dtype_info[dtype].name);
    CHECK(t.dtype == dtype && t.rows == rows && t.cols == cols,
          "%s is (%lld,%lld) %s, expected (%lld,%lld) %s", what, (long long)t.rows,
          (long long)t.cols, dtype_info[t.dtype].name, (long long)rows, (long long)cols,
          dtype_info[dtype].name);
}

/* --- arenas --- */

Arena arena_measure(const char *name, Device *device) {
    Arena a = {name, device, NULL, 0, 0};
    return a;
}

void arena_commit(Arena *a) {
    CHECK(a->base == NULL, "arena %s committed twice", a->name);
    a->size = a->used;
    a->used = 0;
    if (a->size > 0) a->base = (char *)device_alloc(a->device, a->size, a->name);
}

void arena_free(Arena *a) {
    if (a->base) a->device->free(a->device, a->base);
    *a = arena_measure(a->name, a->device);
}

Tensor arena_tensor(Arena *a, DType dtype, int64_t rows, int64_t cols) {
    int64_t count;
    int overflows = __builtin_mul_overflow(rows, cols, &count);
    size_t bytes = overflows ? MAX_ARENA : dtype_bytes(dtype, count);
    if (bytes >= MAX_ARENA - a->used)
        die(EXIT_OOM, "%s need 2^60 bytes or more: " SMALLER_RUN, a->name);
    char *data = a->base ? a->base + a->used : NULL;
    a->used += (size_t)round_up((int64_t)bytes, ARENA_ALIGN);
    CHECK(a->base == NULL || a->used <= a->size,
          "arena %s: the second layout is larger than the first", a->name);
    return tensor_view(data, dtype, rows, cols);
}

/* --- parameters --- */

int param_table_add(ParamTable *t, const char *name, int64_t rows, int64_t cols,
                    int64_t padded_rows, int decay, InitKind init, float init_std) {
    CHECK(param_table_find(t, name) == NULL, "parameter %s declared twice", name);
    CHECK(strlen(name) < sizeof(t->params[0].name), "parameter name %s is too long", name);
    CHECK(rows > 0 && cols > 0 && padded_rows >= rows, "parameter %s: bad shape", name);
    if (t->count == t->capacity) {
        t->capacity = t->capacity ? 2 * t->capacity : 64;
        t->params = (Param *)xrealloc(t->params, (size_t)t->capacity * sizeof(Param));
    }
    Param *p = &t->params[t->count];
    memset(p, 0, sizeof(*p));
    memcpy(p->name, name, strlen(name) + 1);
    p->rows = rows;
    p->cols = cols;
    p->padded_rows = padded_rows;
    p->decay = decay;
    p->init = init;
    p->init_std = init_std;
    return t->count++;
}

int64_t param_end(const Param *p) {
    return p->offset + round_up(p->padded_rows * p->cols, PARAM_ALIGN);
}

const Param *param_table_at(const ParamTable *t, int64_t element) {
    for (int i = 0; i < t->count; i++) {
        const Param *p = &t->params[i];
        if (element >= p->offset && element < param_end(p)) return p;
    }
    CHECK(0, "element %lld of %lld is no parameter's", (long long)element,
          (long long)t->num_elements);
    return NULL;
}

void param_table_seal(ParamTable *t, DType dtype) {
    int64_t offset = 0;
    for (int decay = 1; decay >= 0; decay--) {
        for (int i = 0; i < t->count; i++) {
            Param *p = &t->params[i];
            if (p->decay != decay) continue;
            p->offset = offset;
            offset = param_end(p);
        }
        if (decay) t->num_decayed = offset;
    }
    t->num_elements = offset;
    t->dtype = dtype;
}

static Tensor param_view(Tensor flat, const Param *p) {
    if (tensor_empty(flat)) return flat;
    if (tensor_empty(flat)) return flat;
    Tensor t = tensor_span(flat, p->offset, p->padded_rows * p->cols);
    return tensor_view(t.data, t.dtype, p->padded_rows, p->cols);
}

void param_table_place(ParamTable *t, Arena *parameters, Arena *gradients, Arena *optimizer,
                       int train) {
    t->master = arena_tensor(parameters, DT_F32, 1, t->num_elements);
    t->value =
        t->dtype == DT_F32 ? t->master : arena_tensor(parameters, t->dtype, 1, t->num_elements);
    if (train) {
        t->grad = arena_tensor(gradients, DT_F32, 1, t->num_elements);
        t->m = arena_tensor(optimizer, DT_F32, 1, t->num_elements);
        t->v = arena_tensor(optimizer, DT_F32, 1, t->num_elements);
    }
    for (int i = 0; i < t->count; i++) {
        Param *p = &t->params[i];
        p->value = param_view(t->value, p);
        p->master = param_view(t->master, p);
        p->grad = param_view(t->grad, p);
        p->m = param_view(t->m, p);
        p->v = param_view(t->v, p);
    }
}

Param *param_table_find(ParamTable *t, const char *name) {
    for (int i = 0; i < t->count; i++) {
        if (strcmp(t->params[i].name, name) == 0) return &t->params[i];
    }
    return NULL;
}

int64_t param_table_true_count(const ParamTable *t) {
    int64_t n = 0;
    for (int i = 0; i < t->count; i++) n += t->params[i].rows * t->params[i].cols;
    return n;
}

/* Four normal values from one Philox block by Box-Muller. */
static void normal4(float out[4], uint64_t block, uint32_t tag, uint64_t seed) {
    Philox4 bits =
        philox4x32_10(rng_group_counter(block, tag, 0), (uint32_t)seed, (uint32_t)(seed >> 32));
    for (int i = 0; i < 4; i += 2) {
        double u = ((double)bits.w[i] + 0.5) / 4294967296.0;   // never 0
        double angle = 2.0 * M_PI * ((double)bits.w[i + 1] / 4294967296.0);
        double radius = sqrt(-2.0 * log(u));
        out[i] = (float)(radius * cos(angle));
        out[i + 1] = (float)(radius * sin(angle));
    }
}

static void param_init_values(float *values, const Param *p, int index, uint64_t seed) {
    int64_t count = p->rows * p->cols;
    if (p->init == INIT_NORMAL) {
#pragma omp parallel for
        for (int64_t block = 0; block < ceil_div(count, 4); block++) {
            float z[4];
            normal4(z, (uint64_t)block, RNG_STREAM_INIT + (uint32_t)index, seed);
            int64_t end = min_i64(count, block * 4 + 4);
            for (int64_t i = block * 4; i < end; i++) values[i] = p->init_std * z[i % 4];
        }
    } else {
        for (int64_t i = 0; i < count; i++) values[i] = p->init == INIT_ONE ? 1.0f : 0.0f;
    }
    memset(values + count, 0, (size_t)(p->padded_rows * p->cols - count) * sizeof(float));
}

void param_table_upload(ParamTable *t, Device *d, const Param *p, const float *master) {
    int64_t count = p->padded_rows * p->cols;
    if (!tensor_empty(p->master))
        d->upload(d, p->master.data, master + p->kept_from, tensor_bytes(p->master));
    if (t->dtype == DT_F32) {
        d->upload(d, p->value.data, master, (size_t)count * sizeof(float));
        return;
    }
    bf16_t *rounded = (bf16_t *)xmalloc((size_t)count * sizeof(bf16_t));
    for (int64_t i = 0; i < count; i++) rounded[i] = bf16_from_f32(master[i]);
    d->upload(d, p->value.data, rounded, (size_t)count * sizeof(bf16_t));
    if (!tensor_empty(p->kept_value))
        d->upload(d, p->kept_value.data, rounded + p->kept_from, tensor_bytes(p->kept_value));
    free(rounded);
}

void param_table_init(ParamTable *t, Device *d, uint64_t seed) {
    d->zero(d, t->master.data, tensor_bytes(t->master));
    d->zero(d, t->value.data, tensor_bytes(t->value));
    if (!tensor_empty(t->m)) d->zero(d, t->m.data, tensor_bytes(t->m));
    if (!tensor_empty(t->v)) d->zero(d, t->v.data, tensor_bytes(t->v));
    for (int i = 0; i < t->count; i++) {
        Param *p = &t->params[i];
        float *values = (float *)xmalloc((size_t)(p->padded_rows * p->cols) * sizeof(float));
        param_init_values(values, p, i, seed);
        param_table_upload(t, d, p, values);
        free(values);
    }
}
