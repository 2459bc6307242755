/*
config_schedule -- the value of precision.schedule: a list of rules with the moment each begins at.
What a moment is in steps is phases.c's to say, which knows the run's length.
*/
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "config_parts.h"

const char config_schedule_legal[] =
    "a list of objects with \"at\" (after how many steps, a share of them below 1, \"82%\", "
    "\"lr_decay\", \"sqrt3\"), keys of a rule, and perhaps \"lr\": {\"warmup_steps\": 40, "
    "\"peak\": "
    "optim.lr, \"final_frac\": sched.final_frac}, which are the defaults";

static const char *const entry_keys[] = {"at", "lr", NULL};
static const char *const moment_words[NUM_MOMENTS] = {
    [MOMENT_LR_DECAY] = "lr_decay", [MOMENT_SQRT3] = "sqrt3"};

#define MOMENT_LEGAL                                                                               \
    "legal: a step from 1 on, a share of training between 0 and 1, \"82%%\", \"lr_decay\" or "     \
    "\"sqrt3\""

/* A share of training, given as a fraction or in percent. */
static void set_share(ScheduleEntry *entry, double share, const Where *w) {
    if (!(share > 0 && share < 1)) config_fail(w, "is no moment within training; " MOMENT_LEGAL);
    entry->kind = MOMENT_SHARE;
    entry->at = share;
}

static void set_moment_word(ScheduleEntry *entry, const char *text, const Where *w) {
    for (int i = 0; i < NUM_MOMENTS; i++) {
        if (!moment_words[i] || strcmp(text, moment_words[i]) != 0) continue;
        entry->kind = (MomentKind)i;
        return;
    }
    // strtod alone would take "0x1p3%" and " 5e1%", too.
    char *end = NULL;
    double percent = strtod(text, &end);
    size_t digits = strspn(text, "0123456789.");
    if (digits == 0 || end != text + digits || strcmp(end, "%") != 0)
        config_fail(w, "is \"%.64s\"; " MOMENT_LEGAL, text);
    set_share(entry, percent / 100, w);
}

static void set_moment(ScheduleEntry *entry, const cJSON *value, const Where *w) {
    if (cJSON_IsString(value)) {
        set_moment_word(entry, value->valuestring, w);
        return;
    }
    if (!cJSON_IsNumber(value)) config_fail(w, "is no number and no text; " MOMENT_LEGAL);
    double at = value->valuedouble;
    if (at < 1) {
        set_share(entry, at, w);
        return;
    }
    if (at != floor(at) || at > CONFIG_MAX_COUNT)
        config_fail(w, "is %.10g, no whole step; " MOMENT_LEGAL, at);
    entry->kind = MOMENT_STEP;
    entry->at = at;
}

static double number_in(const cJSON *value, double min, double max, const Where *w) {
    double x = cJSON_IsNumber(value) ? value->valuedouble : NAN;
    if (!(x >= min && x <= max)) config_fail(w, "must be a number from %g to %g", min, max);
    return x;
}

static void set_lr_reset(ScheduleEntry *entry, const cJSON *value, const Where *w) {
    if (!cJSON_IsObject(value))
        config_fail(w, "must be an object with some of warmup_steps, peak, final_frac");
    config_refuse_duplicates(value, w);
    entry->resets_lr = 1;
    int i = 0;
    for (const cJSON *member = value->child; member; member = member->next, i++) {
        Where here = where_child(w, i, member->string);
        if (strcmp(member->string, "warmup_steps") == 0) {
            double steps = number_in(member, 0, CONFIG_MAX_COUNT, &here);
            if (steps != floor(steps)) config_fail(&here, "is %.10g, no whole number", steps);
            entry->warmup_steps = (int64_t)steps;
        } else if (strcmp(member->string, "peak") == 0) {
            entry->peak = (float)number_in(member, 0, 100, &here);
        } else if (strcmp(member->string, "final_frac") == 0) {
            entry->final_frac = (float)number_in(member, 0, 1, &here);
        } else {
            config_fail(&here, "is unknown; \"lr\" has warmup_steps (40 unless given), peak (0: "
                               "optim.lr) and final_frac (sched.final_frac)");
        }
    }
}

static ScheduleEntry entry_of(const cJSON *value, const Where *w) {
    ScheduleEntry entry;
    memset(&entry, 0, sizeof(entry));
    entry.warmup_steps = 40;
    entry.final_frac = -1;
    if (!cJSON_IsObject(value)) config_fail(w, "is no object; expected %s", config_schedule_legal);
    entry.rule = config_rule_of(value, w, entry_keys);
    int has_moment = 0, i = 0;
    for (const cJSON *member = value->child; member; member = member->next, i++) {
        Where here = where_child(w, i, member->string);
        if (strcmp(member->string, "lr") == 0) set_lr_reset(&entry, member, &here);
        if (strcmp(member->string, "at") != 0) continue;
        set_moment(&entry, member, &here);
        has_moment = 1;
    }
    if (!has_moment) config_fail(w, "has no \"at\"; " MOMENT_LEGAL);
    if (!entry.resets_lr) config_refuse_idle_rule(&entry.rule, w);
    return entry;
}

void config_set_schedule(void *at, const ConfigKey *key, const cJSON *value, const Where *w) {
    ScheduleList *list = (ScheduleList *)at;
    (void)key;
    if (!cJSON_IsArray(value)) config_fail(w, "is no list; expected %s", config_schedule_legal);
    int count = cJSON_GetArraySize(value);
    if (count > CONFIG_MAX_ENTRIES)
        config_fail(w, "has %d entries; legal: up to %d", count, CONFIG_MAX_ENTRIES);
    free(list->items);
    list->items = (ScheduleEntry *)xmalloc((size_t)count * sizeof(ScheduleEntry));
    list->count = 0;
    for (const cJSON *item = value->child; item; item = item->next) {
        Where element = where_child(w, list->count, NULL);
        ScheduleEntry entry = entry_of(item, &element);
        int waits = list->count > 0 && list->items[list->count - 1].kind == MOMENT_SQRT3;
        if (waits) config_fail(&element, "follows \"sqrt3\", which may never come; put that last");
        list->items[list->count++] = entry;
    }
}

cJSON *config_get_schedule(const void *at, const ConfigKey *key) {
    const ScheduleList *list = (const ScheduleList *)at;
    (void)key;
    cJSON *array = cJSON_CreateArray();
    for (int i = 0; i < list->count; i++) {
        const ScheduleEntry *entry = &list->items[i];
        cJSON *object = cJSON_CreateObject();
        if (moment_words[entry->kind]) {
            cJSON_AddStringToObject(object, "at", moment_words[entry->kind]);
        } else {
            cJSON_AddNumberToObject(object, "at", entry->at);
        }
        config_add_rule(object, &entry->rule);
        if (entry->resets_lr) {
            cJSON *lr = cJSON_AddObjectToObject(object, "lr");
            cJSON_AddNumberToObject(lr, "warmup_steps", (double)entry->warmup_steps);
            cJSON_AddItemToObject(lr, "peak", config_number_of_float(entry->peak));
            cJSON_AddItemToObject(lr, "final_frac", config_number_of_float(entry->final_frac));
        }
        cJSON_AddItemToArray(array, object);
    }
    return array;
}
