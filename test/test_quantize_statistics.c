/*
test_quantize_statistics -- what NVFP4 rounding does to normal data: errors against the table of
dev/NUMERICS.md 3.4, and that means of stochastic rounding converge to what was rounded, over 1 to
4096 draws.
*/
#include <omp.h>

#include "../llmc/ops/nvfp4.h"
#include "../llmc/ops/quantize.h"
#include "quantize_setup.h"
#include "test.h"

typedef struct {
    double mse, slope;
} Fidelity;   // mean (x^ - x)^2 and E[x^ x] / E[x^2]

static Fidelity fidelity(Tensor x, Operand how) {
    Setup s;
    setup_make(&s, x, FORM_VALUES, how, how);
    setup_run(&s);
    double mult = (double)s.amax[0] / s.row.dequant_div, d2 = 0, xy = 0, x2 = 0;
    int64_t n = tensor_count(x);
    for (int64_t i = 0; i < n; i++) {
        double v = bf16_to_f32(((bf16_t *)x.data)[i]),
               y = bf16_to_f32(((bf16_t *)s.row.data)[i]) * mult;
        d2 += (y - v) * (y - v), xy += v * y, x2 += v * v;
    }
    setup_free(&s);
    Fidelity f = {d2 / (double)n, xy / x2};
    return f;
}

CASE(errors_on_normal_data) {
    static const struct {
        Tile tile;
        Rounding rounding;
        int bits, headroom;
        double mse, slope;
    } rows[] = {{TILE_ROW, ROUND_NEAREST, 8, 0, 9.06e-3, 0},
                {TILE_SQUARE, ROUND_NEAREST, 8, 0, 12.36e-3, 0},
                {TILE_ROW, ROUND_STOCHASTIC, 24, 0, 18.8e-3, .9967},
                {TILE_ROW, ROUND_STOCHASTIC, 24, 1, 23.6e-3, .9996},
                {TILE_ROW, ROUND_STOCHASTIC, 8, 0, 18.8e-3, .9960},
                {TILE_ROW, ROUND_STOCHASTIC, 8, 1, 23.6e-3, .9994}};
    Tensor x = setup_tensor(DT_BF16, 2048, 512, FILL_NORMAL, 13);
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        Operand how = nvfp4_cell();
        how.tile = rows[i].tile, how.rounding = rows[i].rounding;
        how.dither_bits = rows[i].bits, how.headroom = rows[i].headroom;
        Fidelity f = fidelity(x, how);
        EXPECT_NEAR(f.mse, rows[i].mse, .02 * rows[i].mse, "MSE, row %d", i);
        if (rows[i].slope > 0)
            EXPECT_NEAR(f.slope, rows[i].slope, 5e-4, "E[x^ x] / E[x^2], row %d", i);
    }
    free(x.data);
}

/* Sums of decoded values over steps, and what they estimate, in units of each element's E2M1
   grid. */
typedef struct {
    double sum[1024], y[1024], step[1024];
} Means;

static void start_means(Means *m, const Setup *s) {
    memset(m, 0, sizeof(*m));
    Nvfp4Tensor t = nvfp4_tensor(s->amax[0], &s->row_how.how);
    for (int i = 0; i < 1024; i++) {
        const bf16_t *x = (const bf16_t *)s->x.data;
        float block_amax = 0;
        for (int e = 0; e < 16; e++)
            block_amax = fmaxf(block_amax, fabsf(bf16_to_f32(x[i / 16 * 16 + e])));
        float scale = e4m3_decode(e4m3_encode(nvfp4_raw_scale(t, block_amax)));
        double y = bf16_to_f32(x[i]) * nvfp4_element_mult(t, scale);
        m->y[i] = y * scale;   // what the mean of the values must be
        m->step[i] = (fabs(y) < 2 ? .5 : fabs(y) < 4 ? 1 : 2) * scale;
    }
}

/* Root mean square over the elements of the error of their mean of `draws`, in steps. */
static double rms_error(const Means *m, int draws) {
    double sum = 0;
    for (int i = 0; i < 1024; i++) {
        double error = (m->sum[i] / draws - m->y[i]) / m->step[i];
        sum += error * error;
    }
    return sqrt(sum / 1024);
}

/* With headroom nothing clips. The error of a mean falls as 1 / sqrt(draws), for 8 bits down to
   the bias of a dither that is floored: 0 to 1/256 of a step, 1/512 on average, so an RMS of 1 /
   (256 sqrt(3)). */
CASE(means_of_stochastic_rounding_converge) {
    static Means m;
    Tensor x = setup_tensor(DT_BF16, 16, 64, FILL_NORMAL, 14);
    static const int widths[3] = {8, 16, 24};
    for (int w = 0; w < 3; w++) {
        Operand how = nvfp4_cell();
        how.rounding = ROUND_STOCHASTIC;
        how.headroom = 1;
        how.dither_bits = widths[w];
        double floor_error = ldexp(1 / sqrt(3), -widths[w]);
        Setup s;
        setup_make(&s, x, FORM_VALUES, how, how);
        setup_amax(&s);
        start_means(&m, &s);
        double first = 0;
        for (int draw = 1; draw <= 4096; draw++) {
            s.state.step = (uint32_t)draw;
            setup_round(&s);
            for (int i = 0; i < 1024; i++) m.sum[i] += bf16_to_f32(((bf16_t *)s.row.data)[i]);
            if (draw & (draw - 1)) continue;
            if (draw == 1) first = rms_error(&m, 1);
            double want = sqrt(first * first / draw + floor_error * floor_error);
            EXPECT_NEAR(rms_error(&m, draw) / want, 1, .15, "%d bits, %d draws", widths[w], draw);
        }
        double bias = 0;
        for (int i = 0; i < 1024; i++) {
            double error = (m.sum[i] / 4096 - m.y[i]) / m.step[i];
            EXPECT(fabs(error) <= ldexp(1, -widths[w]) + 6 / (2 * 64.0),
                   "element %d is off by %g steps", i, error);
            bias += (m.y[i] < 0 ? error : -error) / 1024;   // towards zero is positive
        }
        EXPECT_NEAR(bias, ldexp(.5, -widths[w]), 1e-3, "%d bits, bias towards zero in steps",
                    widths[w]);
        setup_free(&s);
    }
    free(x.data);
}

CASE(fifty_draws_beat_nearest) {
    static Means m;
    Tensor x = setup_tensor(DT_BF16, 16, 64, FILL_NORMAL, 15);
    Operand how = nvfp4_cell();
    Setup s;
    setup_make(&s, x, FORM_VALUES, how, how);
    setup_run(&s);
    start_means(&m, &s);
    for (int i = 0; i < 1024; i++) m.sum[i] = bf16_to_f32(((bf16_t *)s.row.data)[i]);
    double nearest = rms_error(&m, 1);
    s.row_how.how.rounding = ROUND_STOCHASTIC;
    start_means(&m, &s);
    for (int draw = 0; draw < 50; draw++) {
        s.state.step = (uint32_t)draw;
        setup_round(&s);
        for (int i = 0; i < 1024; i++) {
            double v = bf16_to_f32(((bf16_t *)s.row.data)[i]);
            EXPECT(fabs(v - m.y[i]) <= m.step[i], "draw %d moves element %d by more than a step",
                   draw, i);
            m.sum[i] += v;
        }
    }
    EXPECT(rms_error(&m, 50) < nearest, "%g against %g of nearest", rms_error(&m, 50), nearest);
    setup_free(&s), free(x.data);
}

/* Without clipping |x^ - x| is at most half a step; the largest y of a normal scale is 6.375. */
CASE(nearest_is_within_half_a_step) {
    Tensor x = setup_tensor(DT_BF16, 16, 64, FILL_NORMAL, 16);
    static Means m;
    Operand how = nvfp4_cell();
    Setup s;
    setup_make(&s, x, FORM_VALUES, how, how);
    setup_run(&s);
    start_means(&m, &s);
    for (int i = 0; i < 1024; i++) {
        double error = fabs(bf16_to_f32(((bf16_t *)s.row.data)[i]) - m.y[i]);
        EXPECT(error <= m.step[i] * .5, "element %d is off by %g of %g", i, error, m.step[i]);
        EXPECT(fabs(m.y[i]) <= 6.375 * m.step[i] / (m.step[i] > 0 ? .5 : 1), "element %d", i);
    }
    setup_free(&s), free(x.data);
}

/* Thousands of small tensors: a team of threads would cost more than it gives. */
int main(int argc, char **argv) {
    omp_set_num_threads(1);
    return test_run(argc, argv);
}
