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

static int variants(void) { return getenv("CELL_VARIANTS") ? atoi(getenv("CELL_VARIANTS")) : 2; }

CASE(every_format_by_every_mechanism) {
    int formats_seen = 0, compared = 0;
    for (int f = 0; f < NUM_CELL_FORMATS; f++) {
        Operand format = cell_format(f);
        if (cell_refusal(format)) continue;
        formats_seen++;
        for (int m = 0; m < NUM_MECHANISMS; m++) {
            for (int variant = 0; variant < variants(); variant++) {
                CellCase c;
                if (!cell_case(&c, format, &mechanisms[m], variant)) continue;
                agrees(&c, cell_case_text(&c, cell_format_name(&format), mechanisms[m].name));
                compared++;
            }
        }
    }
    printf("%d formats, %d cases\n", formats_seen, compared);
    EXPECT(formats_seen == 101, "%d formats", formats_seen);
}

/* One cell at every shape, in both directions. */
static void compare_at_shapes(Operand how, const char *name) {
    for (int i = 0; i < 2 * ARRAY_LEN(cell_shapes); i++) {
        CellCase c;
        memset(&c, 0, sizeof(c));
        c.how = how;
        c.how.source = SOURCE_TENSOR;
        c.token = i & 1;
        c.values = operand_values_dtype(&how);
        c.x_type = DT_BF16;
        c.requantized = how.source == SOURCE_REQUANTIZED;
        int64_t multiple = how.hadamard ? max_i64(32, how.hadamard) : 32;
        c.rows = round_up(cell_shapes[i / 2][0], multiple);
        c.cols = round_up(cell_shapes[i / 2][1], multiple);
        c.seed = (uint32_t)i;
        agrees(&c, cell_case_text(&c, "recipe", name));
    }
}

CASE(every_cell_of_every_recipe) {
    for (int r = 0; r < num_recipes; r++)
        for (int i = 0; i < NUM_GEMMS * NUM_SIDES; i++)
            compare_at_shapes((&recipes[r].plan.cell[0][0])[i], recipes[r].name);
}

/* What the kernels of FP8 do not read or write. */
CASE(tensors_without_blocks) {
    static const FormatId of[] = {FORMAT_E4M3, FORMAT_E5M2};
    for (int i = 0; i < 64; i++) {
        CellCase c;
        memset(&c, 0, sizeof(c));
        c.how = formats[of[i & 1]].cell;
        c.token = i >> 1 & 1;
        c.form = i >> 2 & 1 ? FORM_PACKED : FORM_VALUES;
        c.values = i >> 3 & 1 ? DT_F32 : DT_BF16;
        c.x_type = i >> 4 & 1 ? DT_F32 : DT_BF16;
        c.requantized = i >> 5 & 1;
        c.rows = 160;
        c.cols = 96;
        for (int fill = 0; fill < NUM_FILLS; fill++) {
            c.fill = (Fill)fill;
            c.lost = fill == 2;
            agrees(&c, cell_case_text(&c, "per tensor", ""));
        }
    }
}

TEST_MAIN_END
