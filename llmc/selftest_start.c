/* selftest_start -- when the self-test runs by itself; see selftest_start.h. */
#include "selftest_start.h"

#include <stdlib.h>
#include <string.h>

#include "common.h"

/* Runs the test unless this tuple has passed before. */
static SelftestReport first_start_report(const SelftestOptions *o) {
    SelftestReport report;
    memset(&report, 0, sizeof(report));
    char *tuple = selftest_tuple(o);
    if (!tuple || !selftest_known(tuple)) {
        double started = now_ms();
        report = selftest_run(o);
        log_line("selftest    first start here: %d passed, %d failed, %.1f s", report.passed,
                 report.failed, (now_ms() - started) / 1000.0);
        selftest_record(tuple, &report);
    }
    free(tuple);
    return report;
}

/* The table without what passed and without its total, which has been said; caller frees. */
static char *failed_rows(const SelftestReport *report) {
    if (report->failed == 0) return format_string("(on another rank)");
    char *rows = (char *)xmalloc(strlen(report->table) + 1);
    size_t length = 0;
    for (const char *line = report->table; *line;) {
        size_t bytes = strcspn(line, "\n") + 1;
        if (strncmp(line, "PASS", 4) != 0 && !(line[0] >= '0' && line[0] <= '9')) {
            memcpy(rows + length, line, bytes);
            length += bytes;
        }
        line += line[bytes - 1] ? bytes : bytes - 1;
    }
    rows[length] = '\0';
    return rows;
}

/* "NVIDIA H200 (driver 13.0, ...)"; caller frees. */
static char *device_text(const Device *d) {
    return d->libraries[0] ? format_string("%s (%s)", d->name, d->libraries) : xstrdup(d->name);
}

int selftest_at_start(const SelftestOptions *o, const Config *c, Comm *host) {
    SelftestReport report = first_start_report(o);
    // Of products of codes, and of everything else.
    float faults[2] = {(float)report.native_failed, (float)(report.failed - report.native_failed)};
    host->all_reduce(host, faults, 2, COMM_MAX);
    if (faults[0] == 0 && faults[1] == 0) {
        free(report.table);
        return 0;
    }
    char *rows = failed_rows(&report), *device = device_text(o->device);
    if (faults[1] > 0) {
        die(EXIT_DEVICE, "the self-test failed: %s does not compute what it should\n%s", device,
            rows);
    }
    if (c->precision.backend == BACKEND_NATIVE) {
        die(EXIT_DEVICE,
            "the self-test failed: %s does not multiply packed codes as it should; "
            "precision.backend=emulate multiplies their values in BF16\n%s",
            device, rows);
    }
    if (c->precision.stochastic == STOCHASTIC_HARDWARE) {
        die(EXIT_DEVICE,
            "the self-test failed: %s does not multiply packed codes as it should, and only packed "
            "codes are rounded in hardware; set precision.stochastic=software and "
            "precision.backend=emulate\n%s",
            device, rows);
    }
    log_warn("the self-test failed: %s does not multiply packed codes as it should; this run "
             "emulates the products, precision.backend=native would end it\n%s",
             device, rows);
    free(rows), free(device);
    free(report.table);
    return 1;
}
