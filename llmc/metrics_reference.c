/* metrics_reference -- curves over tokens and the distance from them; see metrics_reference.h. */
#include "metrics_reference.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "json_count.h"

typedef struct {
    double tokens, loss;
} Point;

typedef struct {
    Point *points;   // tokens rising
    int64_t count, capacity;
} Curve;

struct Reference {
    Curve train, val;
    double run_losses[REFERENCE_WINDOW], reference_losses[REFERENCE_WINDOW];   // rings
    int64_t num_pairs;                                                         // ever taken in
};

/* A step that was done again after a resume without truncation replaces what is no longer true. */
static void curve_add(Curve *c, double tokens, double loss) {
    while (c->count > 0 && c->points[c->count - 1].tokens >= tokens) c->count--;
    if (c->count == c->capacity) {
        c->capacity = c->capacity ? 2 * c->capacity : 1024;
        c->points = (Point *)xrealloc(c->points, (size_t)c->capacity * sizeof(Point));
    }
    c->points[c->count++] = (Point){tokens, loss};
}

static void curve_add_from(Curve *c, const cJSON *line, const char *key) {
    int64_t tokens = json_count(cJSON_GetObjectItemCaseSensitive(line, "tokens"));
    const cJSON *loss = cJSON_GetObjectItemCaseSensitive(line, key);
    if (tokens < 0 || !cJSON_IsNumber(loss) || !isfinite(loss->valuedouble)) return;
    curve_add(c, (double)tokens, loss->valuedouble);
}

/* The first point at or after `tokens`; c->count for none. */
static int64_t curve_find(const Curve *c, double tokens) {
    int64_t low = 0, high = c->count;   // it is in [low, high]
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (c->points[middle].tokens < tokens) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* The loss of the nearest point, NaN where that is further away. */
static double curve_near(const Curve *c, double tokens, double within) {
    int64_t after = curve_find(c, tokens), nearest = -1;
    for (int64_t i = max_i64(0, after - 1); i < c->count && i <= after; i++) {
        double distance = fabs(c->points[i].tokens - tokens);
        if (distance > within) continue;
        within = distance;
        nearest = i;
    }
    return nearest < 0 ? NAN : c->points[nearest].loss;
}

/* NaN outside of the curve. */
static double curve_at(const Curve *c, double tokens) {
    int64_t low = curve_find(c, tokens);
    if (low == c->count) return NAN;
    Point after = c->points[low];
    if (after.tokens == tokens) return after.loss;
    if (low == 0) return NAN;
    Point before = c->points[low - 1];
    double share = (tokens - before.tokens) / (after.tokens - before.tokens);
    return before.loss + share * (after.loss - before.loss);
}

Reference *reference_open(const char *dir) {
    Reference *r = (Reference *)xmalloc(sizeof(*r));
    char *path = format_string("%s/metrics.jsonl", dir), *rest;
    char *text = read_text_file(path, "log.reference", NULL);
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        cJSON *json = cJSON_Parse(line);
        curve_add_from(&r->train, json, "train_loss");
        curve_add_from(&r->val, json, "val_loss");
        cJSON_Delete(json);
    }
    if (r->train.count == 0) {
        die(EXIT_DATA, "log.reference: '%s' holds no training step to compare with", path);
    }
    free(text);
    free(path);
    return r;
}

void reference_close(Reference *r) {
    free(r->train.points);
    free(r->val.points);
    free(r);
}

static double percent_above(double run, double reference) {
    return 100.0 * (run - reference) / reference;
}

double reference_train_gap(Reference *r, int64_t tokens, double loss) {
    double expected = curve_at(&r->train, (double)tokens);
    if (!isfinite(expected)) return NAN;
    if (isfinite(loss)) {
        r->run_losses[r->num_pairs % REFERENCE_WINDOW] = loss;
        r->reference_losses[r->num_pairs % REFERENCE_WINDOW] = expected;
        r->num_pairs++;
    }
    double run_sum = 0, reference_sum = 0;
    for (int i = 0; i < min_i64(r->num_pairs, REFERENCE_WINDOW); i++) {
        run_sum += r->run_losses[i];
        reference_sum += r->reference_losses[i];
    }
    return percent_above(run_sum, reference_sum);   // NaN before the first pair
}

int reference_is_smooth(const Reference *r) { return r->num_pairs >= REFERENCE_WINDOW; }

int64_t reference_end_tokens(const Reference *r) {
    return (int64_t)r->train.points[r->train.count - 1].tokens;
}

double reference_val_gap(const Reference *r, int64_t tokens, int64_t within, double loss) {
    return percent_above(loss, curve_near(&r->val, (double)tokens, (double)within));
}
