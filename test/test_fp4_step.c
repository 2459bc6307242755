/*
test_fp4_step -- the step rule of fp4_step.h: worked steps, and 200,000 random and adversarial ones
against a model of big fixed-point integers that shares no code with it. The model also has the
rules it must not be, to show that the steps tell them apart.
*/
#include "../llmc/ops/fp4_step.h"

#include <float.h>

#include "../llmc/dtype.h"
#include "../llmc/rng.h"
#include "test.h"

enum { WORDS = FP4_STEP_K / 8 };

typedef struct {
    float c;
    uint32_t a[WORDS], b[WORDS], scales_a, scales_b;
} Step;

// --- the model: a number is an integer of 384 bits, two's complement, in units of 2^-170 ---

enum { BIG_WORDS = 12, BIG_UNIT = -170 };

typedef struct {
    uint32_t w[BIG_WORDS];
} Big;

static Big big_negative(Big x) {
    uint64_t carry = 1;
    for (int i = 0; i < BIG_WORDS; i++) {
        carry += (uint32_t)~x.w[i];
        x.w[i] = (uint32_t)carry;
        carry >>= 32;
    }
    return x;
}

static Big big_sum(Big x, Big y) {
    uint64_t carry = 0;
    for (int i = 0; i < BIG_WORDS; i++) {
        carry += (uint64_t)x.w[i] + y.w[i];
        x.w[i] = (uint32_t)carry;
        carry >>= 32;
    }
    return x;
}

static int big_is_negative(Big x) { return x.w[BIG_WORDS - 1] >> 31; }

/* |x| without its bits below 2^weight, with x's sign: x cut toward zero. */
static Big big_cut(Big x, int weight) {
    int negative = big_is_negative(x);
    if (negative) x = big_negative(x);
    for (int bit = 0; bit < weight - BIG_UNIT && bit < 32 * BIG_WORDS; bit++)
        x.w[bit / 32] &= ~(1u << bit % 32);
    return negative ? big_negative(x) : x;
}

/* A double that is a multiple of 2^-170, exactly. */
static Big big_from_double(double x) {
    Big big = {{0}};
    double rest = ldexp(fabs(x), -BIG_UNIT);
    for (int i = BIG_WORDS - 1; i >= 0; i--) {
        big.w[i] = (uint32_t)(int64_t)floor(ldexp(rest, -32 * i));
        rest -= ldexp(big.w[i], 32 * i);
    }
    return x < 0 ? big_negative(big) : big;
}

/* Cut toward zero to f32. */
static float big_to_f32(Big x) {
    int negative = big_is_negative(x);
    if (negative) x = big_negative(x);
    int top = 32 * BIG_WORDS - 1;
    while (top >= 0 && !(x.w[top / 32] >> top % 32 & 1)) top--;
    int lowest = top - 23 + BIG_UNIT;
    x = big_cut(x, lowest > -149 ? lowest : -149);
    double value = 0;
    for (int i = 0; i < BIG_WORDS; i++) value += ldexp(x.w[i], 32 * i + BIG_UNIT);
    if (value > FLT_MAX) value = FLT_MAX;
    return (float)(negative ? -value : value);
}

typedef enum {
    RULE_TRUE,
    RULE_EXACT_SUM,     // nothing is cut before the sum
    RULE_ZEROS_COUNT,   // blocks whose products are all zero set the quantum too
    RULE_NEAREST        // the sum is rounded to nearest
} Rule;

static int exponent_of(double x, int least) {
    int e;
    frexp(x, &e);
    return e - 1 > least ? e - 1 : least;
}

static float model_step(const Step *s, Rule rule) {
    if (isnan(s->c)) return f32_from_bits(FP4_NAN_BITS);
    double value[FP4_STEP_BLOCKS];
    int lsb = exponent_of(s->c == 0 || isinf(s->c) ? FLT_MIN : fabsf(s->c), -126) - 35;
    for (int i = 0; i < FP4_STEP_BLOCKS; i++) {
        double sa = e4m3_decode(s->scales_a >> 8 * i & 0x7F);
        double sb = e4m3_decode(s->scales_b >> 8 * i & 0x7F);
        if (isnan(sa) || isnan(sb)) return f32_from_bits(FP4_NAN_BITS);
        double dot = 0;
        int nonzero = 0;
        for (int k = 16 * i; k < 16 * i + 16; k++) {
            double product = (double)e2m1_decode(s->a[k / 8] >> 4 * (k % 8) & 15) *
                             e2m1_decode(s->b[k / 8] >> 4 * (k % 8) & 15);
            nonzero |= product != 0;
            dot += product;
        }
        value[i] = dot * sa * sb;
        if (sa == 0 || sb == 0 || (!nonzero && rule != RULE_ZEROS_COUNT)) continue;
        int quantum = exponent_of(sa, -6) + exponent_of(sb, -6) - 35;
        if (quantum > lsb) lsb = quantum;
    }
    if (isinf(s->c)) return s->c;
    if (rule == RULE_EXACT_SUM) lsb = BIG_UNIT;
    Big sum = big_cut(big_from_double(s->c), lsb);
    double near = s->c;
    for (int i = 0; i < FP4_STEP_BLOCKS; i++) {
        sum = big_sum(sum, big_cut(big_from_double(value[i]), lsb));
        near += value[i];
    }
    return rule == RULE_NEAREST ? (float)near : big_to_f32(sum);
}

// --- steps ---

static uint32_t draws;
static uint32_t random_bits(void) {
    uint32_t at = draws++;
    return philox4x32_10(rng_group_counter(at / 4, 3, 4), 5, 6).w[at % 4];
}

static void random_words(uint32_t *words) {
    for (int i = 0; i < WORDS; i++) words[i] = random_bits();
}

static float exact_dot(const Step *s) {
    Step without_c = *s;
    without_c.c = 0;
    return model_step(&without_c, RULE_EXACT_SUM);
}

/* Scales that are the smallest, the largest, subnormal or zero. */
static uint32_t extreme_scales(void) {
    static const uint8_t codes[8] = {0x7E, 0x7E, 0x01, 0x07, 0x08, 0x00, 0x77, 0x81};
    uint32_t scales = 0;
    for (int i = 0; i < 32; i += 8) scales |= (uint32_t)codes[random_bits() % 8] << i;
    return scales;
}

typedef enum {
    KIND_ANY,        // every bit random
    KIND_TRAINING,   // scales of a few binades, c the result of the step before
    KIND_CANCEL,     // c takes the products away again, up to a few units in the last place
    KIND_EXTREME,    // extreme scales
    KIND_SPARSE,     // most codes +0 or -0, so that blocks vanish beside huge scales
    KIND_OPPOSED,    // block 1 is block 0 with the sign turned
    KIND_LARGE_C,    // c's exponent sets the quantum
    NUM_KINDS
} Kind;

static Step make_step(Kind kind, float before) {
    Step s = {before, {0}, {0}, 0, 0};
    random_words(s.a);
    random_words(s.b);
    s.scales_a = random_bits() & 0x7F7F7F7Fu;
    s.scales_b = random_bits() & 0x7F7F7F7Fu;
    if (kind == KIND_ANY) s.c = f32_from_bits(random_bits());
    else s.scales_a &= ~0x01010101u, s.scales_b &= ~0x01010101u;   // no NaN
    if (kind == KIND_TRAINING) {
        s.scales_a = (s.scales_a & 0x0F0F0F0Fu) + 0x38383838u;
        s.scales_b = (s.scales_b & 0x0F0F0F0Fu) + 0x60606060u;
    }
    if (kind == KIND_EXTREME || kind == KIND_OPPOSED) {
        s.scales_a = extreme_scales();
        s.scales_b = extreme_scales();
    }
    if (kind == KIND_SPARSE) {
        s.scales_a = extreme_scales();
        for (int i = 0; i < WORDS; i++) s.a[i] = s.a[i] & 0x88888888u & random_bits();
        uint32_t at = random_bits();
        for (int i = 0; i < 2; i++) s.a[at >> 8 * i & 7] |= 1u << (at >> (16 + 8 * i) & 31);
        s.c = ldexpf(1 + rng_uniform(random_bits()), (int)(at % 20) - 15);
    }
    if (kind == KIND_OPPOSED) {
        for (int i = 0; i < 2; i++) s.a[i + 2] = s.a[i] ^ 0x88888888u, s.b[i + 2] = s.b[i];
        s.scales_a = (s.scales_a & 0xFFFF00FFu) | (s.scales_a & 0xFF) << 8;
        s.scales_b = (s.scales_b & 0xFFFF00FFu) | (s.scales_b & 0xFF) << 8;
        s.c = random_bits() % 2 ? 0.0f : ldexpf(1.5f, (int)(random_bits() % 40) - 30);
    }
    if (kind == KIND_CANCEL) {
        s.c = -exact_dot(&s);
        if (s.c != 0) s.c = f32_from_bits(bits_from_f32(s.c) + random_bits() % 7 - 3);
    }
    if (kind == KIND_LARGE_C) {
        s.c = ldexpf(1 + rng_uniform(random_bits()), (int)(random_bits() % 80) - 20);
        if (random_bits() % 2) s.c = -s.c;
    }
    return s;
}

// --- cases ---

static float run_step(const Step *s) {
    return fp4_step(s->c, s->a, s->b, s->scales_a, s->scales_b);
}

CASE(every_product_of_two_codes) {
    for (uint32_t a = 0; a < 16; a++)
        for (uint32_t b = 0; b < 16; b++)
            for (int at = 0; at < 8; at++) {
                uint32_t noise = 0x77777777u & ~(15u << 4 * at);
                int32_t dot = fp4_dot8(a << 4 * at | noise, b << 4 * at, 5);
                float want = 4 * e2m1_decode((uint8_t)a) * e2m1_decode((uint8_t)b) + 5;
                EXPECT_EQ_I64(dot, want, "codes %u, %u at %d", a, b, at);
            }
}

CASE(every_scale) {
    for (uint32_t code = 0; code < 256; code++) {
        Fp4Scale s = fp4_scale(code);
        int is_nan = (code & 0x7F) == 0x7F;
        for (int byte = 0; byte < 32; byte += 8)
            EXPECT_EQ_I64(fp4_scales_nan(code << byte | (0x7E7E7E7Eu & ~(0xFFu << byte))), is_nan,
                          "code %u, bit %d", code, byte);
        if (!is_nan)
            EXPECT_NEAR(ldexp(s.significand, s.exponent - 3), e4m3_decode(code & 0x7F), 0,
                        "code %u", code);
    }
}

/* Block i has one product that may be other than zero: code i of a times that of b. */
static float worked(float c, uint32_t a_codes, uint32_t b_codes, uint32_t scales_a,
                    uint32_t scales_b) {
    Step s = {c, {0}, {0}, scales_a, scales_b};
    for (int i = 0; i < FP4_STEP_BLOCKS; i++) {
        s.a[2 * i] = a_codes >> 8 * i & 15;
        s.b[2 * i] = b_codes >> 8 * i & 15;
    }
    return run_step(&s);
}

CASE(worked_steps) {
    const uint32_t one = 0x02020202u, ones = 0x38383838u;   // codes and scales of 1.0
    EXPECT_NEAR(worked(0, one, one, ones, ones), 4, 0);
    EXPECT_NEAR(worked(10, 0x0102070Au, one, ones, ones), 10 - 1 + 6 + 1 + 0.5, 0);
    // Cut toward zero where nearest would go up: the last place of 2^24 is 2.
    EXPECT_NEAR(worked(0x1p24f, 5, one, ones, ones), 0x1p24 + 2, 0);
    EXPECT_NEAR(worked(-0x1p24f, 0xD, one, ones, ones), -0x1p24 - 2, 0);
    // 448 * 448 twice, opposed: the quantum is 2^(8 + 8 - 35) = 2^-19. Block 2 has the smallest
    // scale, 2^-9, on both sides: 2^-20 is lost, of three times that a third is.
    const uint32_t opposed = 0x38017E7Eu;
    EXPECT_NEAR(worked(0, 0x00010A02u, 0x00010202u, opposed, opposed), 0, 0);
    EXPECT_NEAR(worked(0, 0x000B0A02u, 0x00010202u, opposed, opposed), -0x1p-19, 0);
    EXPECT_NEAR(worked(0x1p-19f, 0x000B0A02u, 0x00010202u, opposed, opposed), 0, 0);
    // Blocks without a product leave the quantum alone, whatever their scales.
    EXPECT_NEAR(worked(0, 0x00010000u, 0x00010202u, opposed, opposed), 0x1p-20, 0);
}

CASE(special_values) {
    const uint32_t one = 0x02020202u, ones = 0x38383838u;
    EXPECT_EQ_I64(bits_from_f32(worked(-0.0f, 0, 0, ones, ones)), 0, "zero sum");
    EXPECT_EQ_I64(bits_from_f32(worked(5, 2, one, 0x3838387Fu, ones)), FP4_NAN_BITS, "NaN scale");
    EXPECT_EQ_I64(bits_from_f32(worked(NAN, 2, one, ones, ones)), FP4_NAN_BITS, "NaN c");
    EXPECT_EQ_I64(bits_from_f32(worked(-INFINITY, 2, one, ones, ones)), 0xFF800000u, "infinite c");
    EXPECT_NEAR(worked(FLT_MAX, 7, one, 0x7E, 0x7E), FLT_MAX, 0);
    EXPECT_EQ_I64(bits_from_f32(worked(0x1p-149f, 0, one, ones, ones)), 1, "subnormal c");
}

CASE(random_and_adversarial_steps_equal_the_big_integer_model) {
    enum { STEPS = 210000 };
    int differs[RULE_NEAREST + 1] = {0};
    float before = 0;
    for (int i = 0; i < STEPS; i++) {
        Kind kind = (Kind)(i % NUM_KINDS);
        Step s = make_step(kind, kind == KIND_TRAINING ? before : 0.0f);
        float got = run_step(&s), want = model_step(&s, RULE_TRUE);
        EXPECT_EQ_I64(bits_from_f32(got), bits_from_f32(want), "step %d, kind %d, c %a", i, kind,
                      s.c);
        for (int rule = RULE_EXACT_SUM; rule <= RULE_NEAREST; rule++)
            differs[rule] += bits_from_f32(model_step(&s, (Rule)rule)) != bits_from_f32(want);
        if (kind == KIND_TRAINING) before = i % 1000 < NUM_KINDS ? 0.0f : got;
    }
    for (int rule = RULE_EXACT_SUM; rule <= RULE_NEAREST; rule++)
        EXPECT(differs[rule] > STEPS / 1000, "rule %d: only %d steps tell it apart", rule,
               differs[rule]);
}

TEST_MAIN_END
