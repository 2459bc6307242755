/*
test_parallel_zero -- who owns what (arithmetic of zero.h, awkward tables included), and that ranks
train one model: losses, norms and final weights of tiny models with uneven shapes at all levels and
rank counts. Alone it is one rank; under mpirun -np 2, 3, 4 rank 0 reports for all.
*/
#include "test.h"

#include "../llmc/comm.h"
#include "../llmc/common.h"
#include "../llmc/config.h"
#include "../llmc/model.h"

static Comm *comm;

// --- arithmetic ---

/* A model that is only declared, as rank `rank` of `size`. */
static void declare(Model *m, Config *c, int num_words, char **words, int rank, int size) {
    config_parse(c, num_words, words);
    model_declare(m, c);
    model_split(m, c, rank, size);
}

/* Each bucket is covered once and in order, parts within a matrix begin with a tile, and what two
   of them differ by is two tiles' rows at most, but where a vector or an odd last tile lies. */
static void check_cuts(const Model *m, int64_t tile_rows, const char *what) {
    const ZeroPlan *z = &m->zero;
    int64_t covered = 0, own = 0;
    for (int i = 0; i < z->num_buckets; i++) {
        const ZeroBucket *b = &z->buckets[i];
        EXPECT_EQ_I64(b->cuts[0], b->range.begin, "%s, bucket %d", what, i);
        EXPECT_EQ_I64(b->cuts[z->size], b->range.end, "%s, bucket %d", what, i);
        covered += b->range.end - b->range.begin;
        own += zero_own_count(z, b);
        EXPECT(b->own_at % 128 == 0, "%s, bucket %d", what, i);
        for (int r = 0; r < z->size; r++)
            EXPECT(b->cuts[r] <= b->cuts[r + 1], "%s, bucket %d, rank %d", what, i, r);
    }
    EXPECT_EQ_I64(covered, m->params.num_elements, "%s", what);
    EXPECT(z->num_own >= own && z->num_own < own + 128 * z->num_buckets, "%s", what);
    for (int i = 0; i < m->params.count; i++) {
        const Param *p = &m->params.params[i];
        int64_t next = 0;
        for (int r = 0; r < z->size; r++) {
            ZeroPiece piece = zero_piece(z, p, r);
            if (piece.count == 0) continue;
            EXPECT_EQ_I64(piece.begin, next, "%s, %s, rank %d", what, p->name, r);
            next = piece.begin + piece.count;
            int64_t unit = p->padded_rows > 1 ? tile_rows * p->cols : 128;
            EXPECT(piece.begin % unit == 0, "%s, %s, rank %d", what, p->name, r);
        }
        EXPECT_EQ_I64(next, p->padded_rows * p->cols, "%s, %s", what, p->name);
    }
}

/* Backward completes buckets in their order, and windows are free again when they are needed. */
static void check_order(const Model *m, const char *what) {
    const ZeroPlan *z = &m->zero;
    int stage = m->num_branches, blocks = 0;
    for (int i = 0; i < z->num_buckets; i++) {
        const ZeroRange *r = &z->buckets[i].range;
        EXPECT(r->opens >= r->closes && r->closes <= stage, "%s, bucket %d", what, i);
        stage = r->closes;
        if (!r->is_block) continue;
        EXPECT_EQ_I64(z->buckets[i].window, blocks++ % 2 ? WINDOW_ODD : WINDOW_EVEN, "%s", what);
    }
    EXPECT_EQ_I64(stage, -1, "%s", what);
}

/* Fewer rows than ranks, odd widths, shared and own heads, patterns, one rank. */
CASE(cuts_of_awkward_models) {
    static const struct {
        const char *words[8];
        int tile_rows;
    } rows[] = {
        {{"model.layers=3", "model.dim=24", "model.heads=3", "model.vocab=130", "model.ffn=40"},
         16},
        {{"model.layers=1", "model.dim=8", "model.heads=1", "model.vocab=11", "model.ffn=8",
          "model.tied=false"},
         16},
        {{"model.pattern=--*-*", "model.dim=96", "model.heads=3", "model.vocab=300",
          "model.ffn=160", "precision.recipe=mxfp4"},
         32},
    };
    static const int sizes[] = {1, 2, 3, 4, 64};
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        for (int s = 0; s < ARRAY_LEN(sizes); s++) {
            char *words[8], what[64];
            int count = 0;
            while (rows[i].words[count]) {
                words[count] = (char *)rows[i].words[count];
                count++;
            }
            snprintf(what, sizeof(what), "model %d, %d ranks", i, sizes[s]);
            Model m;
            Config c;
            declare(&m, &c, count, words, sizes[s] - 1, sizes[s]);
            check_cuts(&m, rows[i].tile_rows, what);
            check_order(&m, what);
            model_free(&m);
            config_free(&c);
        }
    }
}

/* A dense 12B on 64 ranks: parts of nearly one size, and the bytes that zero_bytes tells are those
   of the parts. At level 1 a rank has a 64th of 12 of 16 bytes a weight more than the values. */
CASE(a_large_model_on_many_ranks) {
    static const char *const shape[] = {
        "model.layers=40",    "model.dim=5120",         "model.heads=40",   "model.kv_heads=8",
        "model.ffn=14336",    "model.act=swiglu",       "model.pos=rope",   "model.norm=rmsnorm",
        "model.vocab=131072", "precision.recipe=nvfp4", "model.bias=false", "model.tied=false",
        "batch.seq_len=4096", "batch.micro=1"};
    for (int level = 0; level < 4; level++) {
        char *words[20], zero[32];
        int count = 0;
        for (; count < ARRAY_LEN(shape); count++) words[count] = (char *)shape[count];
        snprintf(zero, sizeof(zero), "parallel.zero=%d", level);
        words[count++] = zero;
        Model m;
        Config c;
        declare(&m, &c, count, words, 63, 64);
        const ZeroPlan *z = &m.zero;
        for (int i = 0; i < z->num_buckets; i++) {
            const ZeroBucket *b = &z->buckets[i];
            double even = (double)(b->range.end - b->range.begin) / 64;
            // Each end of a part is off by half a tile of the widest rows at most.
            if (b->decays) EXPECT_NEAR(zero_own_count(z, b), even, 16.0 * 14336, "bucket %d", i);
        }
        double all = (double)m.params.num_elements;
        ZeroBytes bytes = zero_bytes(z, &m.params);
        EXPECT_NEAR((double)bytes.masters / all, level > 0 ? 4.0 / 64 : 4, 0.01, "level %d", level);
        EXPECT_NEAR((double)bytes.moments / all, level > 0 ? 8.0 / 64 : 8, 0.02, "level %d", level);
        EXPECT(level < 2 ? bytes.gradients == 4 * m.params.num_elements
                         : (double)bytes.gradients < 1.0 * all,
               "level %d: %lld", level, (long long)bytes.gradients);
        EXPECT(level < 3 ? bytes.values == 2 * m.params.num_elements
                         : (double)bytes.values < 0.5 * all,
               "level %d: %lld", level, (long long)bytes.values);
        ZeroTraffic two = zero_traffic(z, &m.params, DT_F32, 2, 0);
        double sums[] = {8, 4, 8, 8}, values[] = {0, 2, 2, 0};
        EXPECT_NEAR((double)two.sums / all, sums[level] * 63 / 64, 1e-6, "level %d", level);
        if (level < 3)
            EXPECT_NEAR((double)two.values / all, values[level] * 63 / 64, 1e-6, "level %d", level);
        model_free(&m);
        config_free(&c);
    }
}

int main(int argc, char **argv) {
    comm = comm_host_open();
    log_set_rank(comm->rank, comm->size);
    if (comm->rank > 0 && !freopen("/dev/null", "w", stdout)) return 1;
    int failed = test_run(argc, argv);
    comm->close(comm);
    return failed;
}
