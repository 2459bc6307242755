/* selftest_start -- when the self-test runs by itself; see selftest_start.h. */
#include "selftest_start.h"

#include <stdlib.h>
#include <string.h>

#include "common.h"

/* Runs the test unless this tuple has passed before. */
static SelftestReport first_start_report(const SelftestOptions *o) {
    SelftestReport report = {0, 0, 0, NULL};
    char *tuple = selftest_tuple(o);
    if (!tuple || !selftest_known(tuple)) {
        double started = now_ms();
        report = selftest_run(o);
        log_line("selftest    first start here: %d passed, %d failed, %.1f s", report.passed,
                 report.failed, (now_ms() - started) / 1000.0);
        if (tuple && report.failed == 0) selftest_remember(tuple);
    }
    free(tuple);
    return report;
}

/* The lines of the table that begin with FAIL; caller frees. */
static char *failed_rows(const SelftestReport *report) {
    if (report->failed == 0) return format_string("(on another rank)");
    char *rows = (char *)xmalloc(strlen(report->table) + 1);
    size_t length = 0;
    for (const char *line = report->table; *line;) {
        size_t bytes = strcspn(line, "\n") + 1;
        if (strncmp(line, "FAIL", 4) == 0) {
            memcpy(rows + length, line, bytes);
            length += bytes;
        }
        line += line[bytes - 1] ? bytes : bytes - 1;
    }
    rows[length] = '\0';
    return rows;
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
    char *rows = failed_rows(&report);
    const char *gpu = o->device->name, *libraries = o->device->libraries;
    if (faults[1] > 0) {
        die(EXIT_DEVICE, "the self-test failed: %s (%s) does not compute what it should\n%s", gpu,
            libraries, rows);
    }
    if (c->precision.backend == BACKEND_NATIVE) {
        die(EXIT_DEVICE,
            "the self-test failed: %s (%s) does not multiply packed codes as it should; "
            "precision.backend=emulate multiplies their values in BF16\n%s",
            gpu, libraries, rows);
    }
    log_warn("the self-test failed: %s (%s) does not multiply packed codes as it should; this run "
             "emulates the products, precision.backend=native would end it\n%s",
             gpu, libraries, rows);
    free(rows);
    free(report.table);
    return 1;
}
