/*
test_quantize_cell_sim -- the source of the GPU's kernel of any cell, run on the host by fibres.h
against the CPU reference, bit for bit: every format by every mechanism (cell_cases.h), both
directions, odd shapes, inputs that are not finite; its maxima; all cells of all recipes; and that
nothing beyond an operand is written. The launches need a GPU: test_quantize_cells_cuda.cu.
*/
#include "fibres.h"

#include "../llmc/ops/quantize_cell.cuh"

#include "cell_cases.h"
#include "test.h"

enum { GUARD = 64, UNTOUCHED = 0xA5 };

#ifndef SHARE
enum { SHARE = 3, VARIANTS = 1 };   // what keeps this test short
#endif

static void thread_main(void *launch) { cell_kernel(((CellLaunch *)launch)->args); }

static void run_kernel(const QOperand *o, const Quantizer *how, Tensor x, int only_amax) {
    CellLaunch launch = cell_launch(o, how, x, only_amax);
    REQUIRE(launch.shared_bytes <= FIBRE_MAX_SHARED, "%zu bytes of shared memory",
            launch.shared_bytes);
    for (unsigned block = 0; block < launch.blocks; block++)
        fibre_run_block(thread_main, &launch, CELL_THREADS, (int)block);
}

/* Memory with guards on both sides. */
typedef struct {
    uint8_t *bytes;
    size_t count;
} Guarded;

static Guarded guarded(size_t count) {
    Guarded g = {(uint8_t *)xmalloc(count + 2 * GUARD), count};
    memset(g.bytes, UNTOUCHED, count + 2 * GUARD);
    return g;
}

static int guarded_differs(const Guarded *g, const void *want) {
    int differs = memcmp(g->bytes + GUARD, want, g->count) != 0;
    for (int i = 0; i < GUARD; i++)
        differs |= g->bytes[i] != UNTOUCHED || g->bytes[GUARD + g->count + i] != UNTOUCHED;
    return differs;
}

/* Whether the kernel makes of a case what the reference makes. */
static int agrees(const CellCase *c, const char *where) {
    CellWork w;
    cell_work_make(&w, c, UNTOUCHED);
    cell_work_run(&w);
    QOperand o = w.operand;
    float amax = 0;
    if (o.amax) {
        o.amax = &amax;
        run_kernel(&o, &w.how, w.x, 1);
        EXPECT(memcmp(&amax, &w.amax, 4) == 0, "amax %a, want %a; %s", amax, w.amax, where);
        amax = w.amax;
    }
    Guarded data = guarded(setup_bytes(&o)),
            scales = guarded(o.scales ? quantize_scales_bytes(o.rows, o.k) : 0),
            mask = guarded(o.mask ? (size_t)(o.rows * o.k / 8) : 0);
    o.data = data.bytes + GUARD;
    if (o.scales) o.scales = scales.bytes + GUARD;
    if (o.scales && scales_have_padding(&o)) memset(o.scales, 0, scales.count);
    if (o.mask) o.mask = mask.bytes + GUARD;
    run_kernel(&o, &w.how, w.x, 0);
    const char *differs = guarded_differs(&data, w.operand.data)                   ? "data"
                          : o.scales && guarded_differs(&scales, w.operand.scales) ? "scales"
                          : o.mask && guarded_differs(&mask, w.operand.mask)       ? "mask"
                                                                                   : NULL;
    EXPECT(!differs, "%s differ; %s", differs, where);
    free(data.bytes), free(scales.bytes), free(mask.bytes), cell_work_free(&w);
    return !differs;
}

/* Each format meets a third of the mechanisms here, each mechanism a third of the formats. */
CASE(every_format_by_every_mechanism) {
    int formats_seen = 0, compared = 0;
    for (int f = 0; f < NUM_CELL_FORMATS; f++) {
        Operand format = cell_format(f);
        if (cell_refusal(format)) continue;
        for (int m = formats_seen++ % SHARE; m < NUM_MECHANISMS; m += SHARE) {
            for (int variant = 0; variant < VARIANTS; variant++) {
                CellCase c;
                if (!cell_case(&c, format, &mechanisms[m], variant)) continue;
                agrees(&c, cell_case_text(&c, cell_format_name(&format), mechanisms[m].name));
                compared++;
            }
        }
    }
    EXPECT(formats_seen == 101, "%d formats", formats_seen);
    EXPECT(compared > 101 * NUM_MECHANISMS / SHARE / 2, "%d cases", compared);
}

CASE(every_cell_of_every_recipe) {
    for (int r = 0; r < num_recipes; r++) {
        for (int i = 0; i < NUM_GEMMS * NUM_SIDES; i++) {
            int shape = (r + i) % NUM_CELL_SHAPES;
            CellCase c = cell_case_of((&recipes[r].plan.cell[0][0])[i], i >= 3, shape);
            agrees(&c, cell_case_text(&c, "recipe", recipes[r].name));
        }
    }
}

/* What the kernels of FP8 do not read or write. */
CASE(tensors_without_blocks) {
    for (int i = 0; i < NUM_BLOCKLESS_CASES; i++) {
        CellCase c = blockless_case(i);
        agrees(&c, cell_case_text(&c, "per tensor", ""));
    }
}

CASE(conversions) {
    for (int i = 0; i < NUM_CONVERSION_CASES; i++) {
        CellCase c = conversion_case(i);
        agrees(&c, cell_case_text(&c, "converted", ""));
    }
}

TEST_MAIN_END
