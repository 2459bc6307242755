/*
fuzz_metrics -- metrics.jsonl of any content, as log.reference and as what an earlier part of the
run left: opened, compared with and gone on with. main.log gets the same text.
*/
#include "../llmc/metrics.h"

#include <math.h>

#include "fuzzing.h"

void fuzz_input(const uint8_t *data, size_t size) {
    FuzzBytes bytes = {data, size};
    uint32_t first_step = fuzz_take(&bytes, 1);
    fuzz_put_file("reference/metrics.jsonl", bytes.data, bytes.size);
    fuzz_put_file("run/metrics.jsonl", bytes.data, bytes.size);
    fuzz_put_file("run/main.log", bytes.data, bytes.size);
    MetricsOptions options = {.dir = fuzz_path("run"),
                              .reference = fuzz_path("reference"),
                              .reference_warn = 1,
                              .config = "{}\n",
                              .git_hash = "",
                              .build = "",
                              .device = "",
                              .backend = "",
                              .precision = "",
                              .world_size = 1,
                              .print_every = 1,
                              .first_step = first_step,
                              .total_steps = first_step + 2,
                              .tokens_per_step = 64,
                              .flops_per_token = 1,
                              .peak_flops = 1};
    Metrics *m = metrics_open(&options);
    fuzz_accepted();
    for (int64_t step = first_step; step < options.total_steps; step++) {
        StepRecord record = {.step = step, .tokens = 64 * (step + 1), .loss = 4, .time_ms = 1};
        record.loss_z = record.norm_z = NAN;
        metrics_step(m, &record);
        ValidationRecord validation = {.step = step + 1, .tokens = 64 * (step + 1), .loss = 4};
        metrics_validation(m, &validation);
    }
    metrics_close(m, EXIT_DONE, "done");
}
