/*
test_schedule -- learning rates against literals worked out by hand, above all at the ends: the
first and last step of warm-up, the first step of decay, and the very last step.
*/
#include "../llmc/schedule.h"

#include "../llmc/common.h"
#include "test.h"

static Schedule schedule_of(ScheduleType type, int64_t warmup_steps, int64_t total_steps) {
    Schedule s = {type, 6e-4, warmup_steps, 0.2, 0.1, total_steps};
    return s;
}

CASE(warmup_starts_above_zero_and_ends_at_the_peak) {
    for (int type = 0; type < NUM_SCHEDULES; type++) {
        Schedule s = schedule_of((ScheduleType)type, 300, 1000);
        EXPECT(schedule_lr(&s, 0) == 2e-6f, "%s: %.9g", schedule_names[type], schedule_lr(&s, 0));
        EXPECT(schedule_lr(&s, 149) == 3e-4f, "%s", schedule_names[type]);
        EXPECT(schedule_lr(&s, 299) == 6e-4f, "%s", schedule_names[type]);
        EXPECT(schedule_lr(&s, 300) == 6e-4f, "%s", schedule_names[type]);
    }
}

/* Dividing by all steps instead of those after warm-up would end this run at 1.72e-4. */
CASE(last_step_is_the_floor_exactly) {
    ScheduleType decaying[] = {SCHED_COSINE, SCHED_LINEAR, SCHED_WSD};
    for (int i = 0; i < ARRAY_LEN(decaying); i++) {
        Schedule s = schedule_of(decaying[i], 300, 1000);
        EXPECT(schedule_lr(&s, 999) == 6e-5f, "%s ends at %.9g", schedule_names[decaying[i]],
               schedule_lr(&s, 999));
        EXPECT(schedule_lr(&s, 998) > 6e-5f, "%s", schedule_names[decaying[i]]);
        s.final_frac = 0;
        EXPECT(schedule_lr(&s, 999) == 0, "%s", schedule_names[decaying[i]]);
        s.final_frac = 1;
        EXPECT(schedule_lr(&s, 600) == 6e-4f && schedule_lr(&s, 999) == 6e-4f, "%s",
               schedule_names[decaying[i]]);
    }
}

CASE(cosine_between_its_ends) {
    Schedule s = schedule_of(SCHED_COSINE, 100, 1101);   // 1000 steps between the two ends
    // (1 + cos(pi * progress)) / 2 at a quarter, a half and three quarters of the way
    EXPECT_NEAR(schedule_lr(&s, 100 + 250), 6e-5 + 5.4e-4 * 0.853553390593274, 1e-10);
    EXPECT_NEAR(schedule_lr(&s, 100 + 500), 3.3e-4, 1e-10);
    EXPECT_NEAR(schedule_lr(&s, 100 + 750), 6e-5 + 5.4e-4 * 0.146446609406726, 1e-10);
    EXPECT_EQ_I64(schedule_decay_start(&s), 101);
}

CASE(linear_between_its_ends) {
    Schedule s = schedule_of(SCHED_LINEAR, 0, 101);
    EXPECT(schedule_lr(&s, 0) == 6e-4f);
    EXPECT_NEAR(schedule_lr(&s, 25), 4.65e-4, 1e-10);
    EXPECT_NEAR(schedule_lr(&s, 50), 3.3e-4, 1e-10);
    EXPECT_EQ_I64(schedule_decay_start(&s), 1);
}

CASE(wsd_is_flat_then_falls_over_the_last_steps) {
    Schedule s = schedule_of(SCHED_WSD, 10, 100);   // 20 steps of decay: 80 .. 99
    EXPECT(schedule_lr(&s, 10) == 6e-4f && schedule_lr(&s, 79) == 6e-4f);
    EXPECT_NEAR(schedule_lr(&s, 80), 6e-4 - 5.4e-4 / 20, 1e-10);
    EXPECT_NEAR(schedule_lr(&s, 89), 3.3e-4, 1e-10);
    EXPECT_EQ_I64(schedule_decay_start(&s), 80);
    s.decay_frac = 1e-9;   // less than a step: still the last one
    EXPECT(schedule_lr(&s, 98) == 6e-4f && schedule_lr(&s, 99) == 6e-5f);
    s.decay_frac = 1;   // decay starts right after warm-up
    EXPECT_EQ_I64(schedule_decay_start(&s), 10);
    EXPECT_NEAR(schedule_lr(&s, 54), 3.3e-4, 1e-10);
}

CASE(constant_stays_at_the_peak) {
    Schedule s = schedule_of(SCHED_CONSTANT, 0, 50);
    EXPECT(schedule_lr(&s, 0) == 6e-4f && schedule_lr(&s, 49) == 6e-4f);
    EXPECT_EQ_I64(schedule_decay_start(&s), 50);
}

CASE(shortest_runs) {
    for (int type = 0; type < NUM_SCHEDULES; type++) {
        float end = type == SCHED_CONSTANT ? 6e-4f : 6e-5f;
        Schedule one = schedule_of((ScheduleType)type, 0, 1);
        EXPECT(schedule_lr(&one, 0) == end, "%s of one step", schedule_names[type]);
        Schedule warm = schedule_of((ScheduleType)type, 4, 5);   // nothing between the ends
        EXPECT(schedule_lr(&warm, 3) == 6e-4f, "%s", schedule_names[type]);
        EXPECT(schedule_lr(&warm, 4) == end, "%s", schedule_names[type]);
        EXPECT_EQ_I64(schedule_decay_start(&warm), type == SCHED_CONSTANT ? 5 : 4);
    }
}

CASE(never_rises_after_warmup) {
    for (int type = 0; type < NUM_SCHEDULES; type++) {
        Schedule s = schedule_of((ScheduleType)type, 7, 211);
        for (int64_t step = 7; step < 211; step++) {
            EXPECT(schedule_lr(&s, step) <= schedule_lr(&s, step - 1), "%s at %lld",
                   schedule_names[type], (long long)step);
        }
    }
}

CASE(nonsense_is_a_programmer_error) {
    Schedule s = schedule_of(SCHED_COSINE, 100, 100);
    EXPECT_ABORTS("100 warm-up steps of 100 steps", schedule_lr(&s, 0));
    s = schedule_of(SCHED_COSINE, 10, 100);
    EXPECT_ABORTS("step 100 of 100", schedule_lr(&s, 100));
    EXPECT_ABORTS("step -1 of 100", schedule_lr(&s, -1));
    s = schedule_of(SCHED_WSD, 10, 100);
    s.decay_frac = 0;
    EXPECT_ABORTS("decay_frac 0", schedule_lr(&s, 0));
}

TEST_MAIN_END
