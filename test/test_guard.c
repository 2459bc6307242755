/*
test_guard -- limits and z-scores against values worked out by hand, what must never enter a window,
and that a copied state goes on bit for bit.
*/
#include "../llmc/guard.h"

#include "test.h"

/* Losses 3 and 5 in turn: mean 4, deviation 1. Norms 1 and 2 in turn: mean 1.5, deviation 0.5. */
static void push_alternating(Guard *g, int steps) {
    for (int i = 0; i < steps; i++) guard_push(g, i % 2 ? 5 : 3, i % 2 ? 2 : 1, 0);
}

CASE(no_limit_until_the_window_is_full) {
    Guard g = guard_make(6, 4);
    push_alternating(&g, GUARD_WINDOW - 1);
    EXPECT(isinf(guard_loss_max(&g)) && guard_loss_max(&g) > 0);
    EXPECT(isinf(guard_norm_max(&g)) && guard_norm_max(&g) > 0);
    EXPECT(isnan(guard_z(&g.loss, 4)));
    guard_push(&g, 5, 2, 0);
    EXPECT(guard_loss_max(&g) == 10.0f, "%.9g", guard_loss_max(&g));
    EXPECT(guard_norm_max(&g) == 3.5f, "%.9g", guard_norm_max(&g));
    EXPECT_NEAR(guard_z(&g.loss, 4.3), 0.3, 1e-12);
    EXPECT_NEAR(guard_z(&g.norm, 1.4), -0.2, 1e-12);
}

CASE(zero_means_no_limit) {
    Guard g = guard_make(0, 3);
    push_alternating(&g, GUARD_WINDOW);
    EXPECT(isinf(guard_loss_max(&g)));
    EXPECT(guard_norm_max(&g) == 3.0f);
    EXPECT_NEAR(guard_z(&g.loss, 6), 2, 1e-12, "statistics exist without a limit");
}

CASE(skipped_and_nonfinite_steps_leave_no_trace) {
    Guard g = guard_make(6, 6);
    push_alternating(&g, GUARD_WINDOW);
    Guard before = g;
    guard_push(&g, 1000, 1, 1);
    guard_push(&g, NAN, 1, 0);
    guard_push(&g, 3, NAN, 0);
    guard_push(&g, INFINITY, 1, 0);
    guard_push(&g, 3, -INFINITY, 0);
    EXPECT_BITS(&g, &before, sizeof(g));
}

CASE(the_oldest_value_leaves) {
    Guard g = guard_make(2, 2);
    for (int i = 0; i < GUARD_WINDOW; i++) guard_push(&g, 1000 + i, 1000 + i, 0);
    push_alternating(&g, GUARD_WINDOW - 1);
    EXPECT(g.loss.values[0] == 1127 && g.loss.values[1] == 3, "%g %g", g.loss.values[0],
           g.loss.values[1]);
    EXPECT(guard_loss_max(&g) > 100);
    guard_push(&g, 5, 2, 0);
    EXPECT(guard_loss_max(&g) == 6.0f, "%.9g", guard_loss_max(&g));
    EXPECT_EQ_I64(g.loss.count, GUARD_WINDOW);
}

CASE(equal_values_give_no_limit) {
    Guard g = guard_make(3, 3);
    for (int i = 0; i < GUARD_WINDOW; i++) guard_push(&g, 2.5, 1, 0);
    EXPECT(isinf(guard_loss_max(&g)), "any noise would be skipped");
    EXPECT(isnan(guard_z(&g.loss, 2.5)));
}

CASE(a_restored_window_goes_on_bit_for_bit) {
    Guard whole = guard_make(6, 6), restored = guard_make(6, 6);
    for (int i = 0; i < 300; i++) {
        double loss = 3 + (double)(float)sin(i * 0.7), norm = 1 + (double)(float)cos(i * 1.3) / 2;
        if (i == 201) {   // as a checkpoint does: count and values
            restored.loss.count = whole.loss.count;
            restored.norm.count = whole.norm.count;
            memcpy(restored.loss.values, whole.loss.values, sizeof(whole.loss.values));
            memcpy(restored.norm.values, whole.norm.values, sizeof(whole.norm.values));
        }
        guard_push(&whole, loss, norm, 0);
        if (i < 201) continue;
        guard_push(&restored, loss, norm, 0);
        float a = guard_loss_max(&whole), b = guard_loss_max(&restored);
        EXPECT_BITS(&a, &b, sizeof(a), "step %d", i);
    }
}

CASE(a_small_deviation_on_a_large_mean) {
    Guard g = guard_make(1, 1);
    for (int i = 0; i < GUARD_WINDOW; i++) guard_push(&g, i % 2 ? 1e8 + 1 : 1e8 - 1, 1, 0);
    EXPECT_NEAR(guard_z(&g.loss, 1e8 + 3), 3, 1e-9);
}

TEST_MAIN_END
