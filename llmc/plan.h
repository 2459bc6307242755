/*
plan -- says what a run will do before it does it: which format each GEMM of each linear really
uses, memory by arena, tokens and FLOPs of a step. Text only; it decides nothing.
*/
#ifndef LLMC_PLAN_H
#define LLMC_PLAN_H

#include "config.h"
#include "gemm_rates.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One line per linear and GEMM: formats, what runs it on the engine's device, and, where rates were
   measured, its TFLOP/s beside BF16's. With `brief`, for reading behind the recipe's name, blocks
   that agree share a line ("blocks.0-9.attn.qkv"), and there is one line in all where no GEMM is
   quantised and nothing was measured. `rates` of gemm_rates_measure, or NULL. Caller frees. */
char *plan_precision_text(Model *m, int brief, const GemmRate *rates);
/* The lines of the GEMMs that a later phase than the first changes, blocks that agree together, and
   how many are quantised then. Caller frees. */
char *plan_phase_text(Model *m, int phase);
/* Arena sizes in MiB, after model_measure or model_place. Caller frees. */
char *plan_memory_text(const Model *m);
/* The same of a device that is not there, in GB as its memory is told; the op workspace would be
   its own to say. */
char *plan_memory_there_text(const Model *m);
/* Bytes of all arenas. */
size_t plan_memory_bytes(const Model *m);
/* GEMMs of one micro-step (forward, backward and what memory.recompute runs again) with a quantised
   operand: what Engine.quantized_gemms counts. */
int plan_quantized_gemms(Model *m);
/* The same of all GEMMs, with quantised operands and without. */
int plan_all_gemms(Model *m);
/* The tag of every log line, of what really runs: "nvfp4(emulated)", "fp8(native)"; "fp8(mixed)"
   where some of the quantised GEMMs are native and others are not;
   "nvfp4+rules(emulated)" with precision.rules, "nvfp4(emulated)/phase1" from an entry of
   precision.schedule on; "bf16" where no GEMM is quantised, whatever the recipe is called. */
void plan_precision_tag(Model *m, const Config *c, char *buffer, int size);

#ifdef __cplusplus
}
#endif
#endif
