/*
json_count -- whole numbers in JSON that may come from anywhere: they are doubles in cJSON, and to
turn one that does not fit into an integer is undefined.
  tests     fuzz_safetensors.c, fuzz_state.c, fuzz_metrics.c
*/
#ifndef LLMC_JSON_COUNT_H
#define LLMC_JSON_COUNT_H

#include <cjson/cJSON.h>
#include <math.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define JSON_MAX_INTEGER 9007199254740992.0   // 2^53: up to it a double holds every integer

static inline int json_is_integer(const cJSON *item) {
    return cJSON_IsNumber(item) && fabs(item->valuedouble) <= JSON_MAX_INTEGER &&
           item->valuedouble == floor(item->valuedouble);
}

/* A whole number in [0, 2^53], or -1. */
static inline int64_t json_count(const cJSON *item) {
    return json_is_integer(item) && item->valuedouble >= 0 ? (int64_t)item->valuedouble : -1;
}

#ifdef __cplusplus
}
#endif
#endif
