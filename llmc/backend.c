/* backend -- the choice of backend.h. */
#include "backend.h"

#include <stdio.h>
#include <string.h>

#include "common.h"

enum { PACKED_K_DIVISOR = 32 };   // cuBLASLt's kernels and gemm_mma's: 16 bytes of codes

/* mma.sync of FP4: see gemm_mma.h, which also asks how the program was built. */
static int has_fp4_mma(const Device *d) { return d->compute_capability / 10 == 12; }

int backend_is_native(Fp4Gemm fp4, const Device *d) {
    return fp4 == FP4_LIBRARY || (fp4 == FP4_MMA && has_fp4_mma(d));
}

const char *backend_name(Fp4Gemm fp4, const Device *d) {
    if (fp4 == FP4_EMULATED) return "emulated";
    return backend_is_native(fp4, d) ? "native" : "software";
}

static int is_fp8(const Linear *l, GemmKind g) { return operand_is_fp8(&l->plan.cell[g][SIDE_A]); }

const char *backend_gemm_name(const Engine *e, const Linear *l, GemmKind g) {
    if (linear_gemm_form(e, l, g) == FORM_VALUES) return "emulated";
    return is_fp8(l, g) ? "native" : backend_name(e->fp4, e->device);
}

const char *backend_run_name(Model *m) {
    const char *all = NULL;
    for (int i = 0; i < NUM_GEMMS * model_num_linears(m); i++) {
        const Linear *l = model_linear(m, i / NUM_GEMMS);
        GemmKind g = (GemmKind)(i % NUM_GEMMS);
        if (!linear_gemm_is_quantized(l, g)) continue;
        const char *name = backend_gemm_name(&m->engine, l, g);
        if (all && strcmp(all, name) != 0) return "mixed";
        all = name;
    }
    return all ? all : "plain";
}

const char *backend_kernel(const Engine *e, const Linear *l, GemmKind g) {
    if (e->device->kind == DEVICE_CPU) return sgemm_name;
    int f32 = linear_values_dtype(l, g) == DT_F32;
    if (linear_gemm_form(e, l, g) == FORM_VALUES) return f32 ? "cuBLASLt f32" : "cuBLASLt bf16";
    if (is_fp8(l, g)) return "cuBLASLt fp8";
    if (e->fp4 == FP4_LIBRARY) return "cuBLASLt nvfp4";
    return has_fp4_mma(e->device) ? "mma.sync nvfp4" : "mma.sync nvfp4 in software";
}

Fp4Gemm backend_fp4(const Config *c, const Device *d) {
    if (c->precision.backend == BACKEND_EMULATE) return FP4_EMULATED;
    if (c->precision.gemm == GEMM_KERNEL_MMA && d->kind == DEVICE_CUDA) return FP4_MMA;
    return d->native_fp4 ? FP4_LIBRARY : FP4_EMULATED;
}

int backend_fp8(const Config *c, const Device *d) {
    return d->native_fp8 && c->precision.backend != BACKEND_EMULATE;
}

Device backend_device(DeviceModel model) {
    const DeviceFacts *facts = &device_facts[model];
    Device d;
    memset(&d, 0, sizeof(d));
    d.kind = DEVICE_CUDA;
    snprintf(d.name, sizeof(d.name), "%s", facts->name);
    d.compute_capability = facts->compute_capability;
    d.native_fp4 = facts->peak[UNIT_FP4] > 0;
    d.native_fp8 = facts->peak[UNIT_FP8] > 0;
    d.num_threads = facts->multiprocessors;
    d.peak_bf16_flops = facts->peak[UNIT_BF16];
    return d;
}

/* --- refusals --- */

/* Linear i of the model's phases, one phase after the other, with its plan there. */
static Linear planned_linear(Model *m, int i) {
    Linear l = *model_linear(m, i % model_num_linears(m));
    l.plan = m->plans[i];
    return l;
}

static int num_planned(const Model *m) { return m->num_phases * model_num_linears(m); }

/* Whether this GEMM multiplies codes on a device with units of both kinds: NVFP4's or FP8's. */
static int is_of_codes(const Linear *l, GemmKind g, int fp8) {
    const Engine able = {.fp4 = FP4_LIBRARY, .fp8 = 1};
    return is_fp8(l, g) == fp8 && linear_gemm_form(&able, l, g) == FORM_PACKED;
}

static int linear_has_codes(const Linear *l, int fp8) {
    for (int g = 0; g < NUM_GEMMS; g++)
        if (is_of_codes(l, (GemmKind)g, fp8)) return 1;
    return 0;
}

/* Whether some GEMM of the model does, in some phase. */
static int model_has_codes(Model *m, int fp8) {
    for (int i = 0; i < num_planned(m); i++) {
        Linear l = planned_linear(m, i);
        if (linear_has_codes(&l, fp8)) return 1;
    }
    return 0;
}

/* "fp8, fp8_delayed": recipes with products that the device's units multiply as codes. */
static const char *native_recipes(const Device *d, char *buffer, int size) {
    int at = snprintf(buffer, (size_t)size, "none");
    for (int i = 0, count = 0; i < num_recipes; i++) {
        Linear l = {.plan = recipes[i].plan};
        int is_native = (d->native_fp4 && linear_has_codes(&l, 0)) ||
                        (d->native_fp8 && linear_has_codes(&l, 1));
        if (!is_native) continue;
        at = count++ ? at : 0;
        at += snprintf(buffer + at, (size_t)(size - at), "%s%s", at ? ", " : "", recipes[i].name);
    }
    return buffer;
}

/* "but BEFORE the device AFTER" is why. */
static NORETURN void refuse_native(const Config *c, const Device *d, const char *before,
                                   const char *after, const char *instead) {
    char possible[512];
    die(EXIT_CONFIG,
        "precision.backend is native and precision.recipe is %s, but %s%s%s; recipes with native "
        "products there: %s; set %s",
        c->precision.recipe->name, before, d->name, after,
        native_recipes(d, possible, sizeof(possible)), instead);
}

static NORETURN void refuse_native_fp4(const Config *c, const Device *d) {
    int mma = c->precision.gemm == GEMM_KERNEL_MMA;
    if (d->native_fp4) {
        refuse_native(c, d, "",
                      " has no mma.sync of FP4 (sm_120, sm_121), as precision.gemm=mma wants",
                      "precision.backend=auto, or precision.gemm=cublaslt");
    }
    refuse_native(c, d, "", " has no FP4 tensor cores",
                  mma ? "precision.backend=emulate and precision.gemm=cublaslt"
                      : "precision.backend=emulate");
}

static void check_mma(const Config *c, const Device *d) {
    if (d->kind == DEVICE_CPU) {
        int native = c->precision.backend == BACKEND_NATIVE;
        die(EXIT_CONFIG,
            "precision.gemm is mma, a kernel for GPUs, and the run is on the CPU; set %s",
            native ? "precision.gemm=cublaslt and precision.backend=emulate"
                   : "precision.gemm=cublaslt, which on a CPU changes nothing");
    }
    if (c->precision.backend == BACKEND_EMULATE) {
        die(EXIT_CONFIG,
            "precision.backend is emulate, which multiplies decoded values, and precision.gemm is "
            "mma, which multiplies codes; set precision.backend=auto or precision.gemm=cublaslt");
    }
}

/* What the keys ask of NVFP4, before any shape is looked at. */
static void check_fp4(const Config *c, const Device *d) {
    if (c->precision.gemm == GEMM_KERNEL_MMA) check_mma(c, d);
    if (c->precision.backend == BACKEND_NATIVE && !backend_is_native(backend_fp4(c, d), d))
        refuse_native_fp4(c, d);
}

/* And of FP8. */
static void check_fp8(const Config *c, const Device *d) {
    if (c->precision.backend != BACKEND_NATIVE || d->native_fp8) return;
    refuse_native(c, d, "", " has no FP8 tensor cores (sm_89 and later)",
                  "precision.backend=emulate");
}

/* Whether the GPU's convert would round some operand of the model, as the engine is set. */
static int rounds_in_hardware(Model *m) {
    for (int i = 0; i < NUM_GEMMS * NUM_SIDES * num_planned(m); i++) {
        Linear l = planned_linear(m, i / (NUM_GEMMS * NUM_SIDES));
        GemmKind g = (GemmKind)(i / NUM_SIDES % NUM_GEMMS);
        Side s = (Side)(i % NUM_SIDES);
        int token = g == GEMM_WGRAD || (g == GEMM_DGRAD && s == SIDE_B);
        if (linear_gemm_form(&m->engine, &l, g) == FORM_PACKED &&
            quantize_can_round_in_hardware(&l.plan.cell[g][s], token))
            return 1;
    }
    return 0;
}

/* What precision.stochastic asks, once the engine is set. */
static void check_stochastic(Model *m, const Config *c, const Device *d) {
    if (c->precision.stochastic != STOCHASTIC_HARDWARE) return;
    const char *software = "set precision.stochastic=software";
    if (!quantize_has_hardware_rounding(d)) {
        die(EXIT_CONFIG,
            "precision.stochastic is hardware, but %s has no convert that rounds stochastically "
            "(sm_100, sm_103); %s",
            d->name, software);
    }
    if (m->engine.fp4 == FP4_EMULATED) {
        die(EXIT_CONFIG,
            "precision.stochastic is hardware, which rounds to packed NVFP4, and this run on %s "
            "has none; %s",
            d->name, software);
    }
    if (!rounds_in_hardware(m)) {
        die(EXIT_CONFIG,
            "precision.stochastic is hardware, but for %s this run has no packed NVFP4 operand "
            "that is rounded stochastically with 8 dither bits in rows of 16; %s",
            d->name, software);
    }
}

static void refuse_size(const Linear *l, const char *what, int64_t size, const char *keys) {
    if (size % PACKED_K_DIVISOR == 0) return;
    die(EXIT_CONFIG,
        "precision of %s: products of codes sum over multiples of %d, and its %s are %lld; "
        "change %s, or set precision.backend=emulate and precision.gemm=cublaslt",
        l->name, PACKED_K_DIVISOR, what, (long long)size, keys);
}

static void check_sizes(const Engine *e, const Linear *l, int64_t tokens) {
    const char *dims = "model.dim, model.ffn or the heads";
    if (linear_gemm_form(e, l, GEMM_FPROP) == FORM_PACKED) refuse_size(l, "inputs", l->in, dims);
    if (linear_gemm_form(e, l, GEMM_DGRAD) == FORM_PACKED) refuse_size(l, "outputs", l->out, dims);
    if (linear_gemm_form(e, l, GEMM_WGRAD) == FORM_PACKED)
        refuse_size(l, "tokens of a micro-batch", tokens, "batch.micro or batch.seq_len");
}

/* Keys that ask for something of which this run has nothing. */
static void warn_idle_keys(const Model *m, const Config *c, int has_nvfp4) {
    if (c->precision.gemm == GEMM_KERNEL_MMA && !has_nvfp4) {
        log_warn("precision.gemm=mma changes nothing: it matters to products of NVFP4 by NVFP4 "
                 "only, and this run has none");
    }
    if (c->precision.backend == BACKEND_NATIVE && !m->quantized)
        log_warn("precision.backend=native changes nothing: no operand of this run is quantised");
}

void backend_set_engine(Model *m, const Config *c, Device *d) {
    Engine *e = &m->engine;
    e->device = d;
    e->fp4 = model_has_codes(m, 0) ? backend_fp4(c, d) : FP4_EMULATED;
    e->fp8 = model_has_codes(m, 1) && backend_fp8(c, d);
    e->hardware_rounding = c->precision.stochastic == STOCHASTIC_HARDWARE &&
                           e->fp4 != FP4_EMULATED && quantize_has_hardware_rounding(d);
}

void backend_choose(Model *m, const Config *c, Device *d) {
    int has_nvfp4 = model_has_codes(m, 0), has_fp8 = model_has_codes(m, 1);
    warn_idle_keys(m, c, has_nvfp4);
    if (has_nvfp4) check_fp4(c, d);
    if (has_fp8) check_fp8(c, d);
    if (c->precision.backend == BACKEND_NATIVE && m->quantized && !has_nvfp4 && !has_fp8)
        refuse_native(c, d, "its products multiply decoded values on ", ", as on every device",
                      "precision.backend=emulate");
    backend_set_engine(m, c, d);
    check_stochastic(m, c, d);
    int64_t tokens = (int64_t)c->batch.micro * c->batch.seq_len;
    for (int i = 0; i < num_planned(m); i++) {
        Linear l = planned_linear(m, i);
        check_sizes(&m->engine, &l, tokens);
    }
}

void backend_choose_for_plan(Model *m, const Config *c, Device *d) {
    if (c->plan.device == DEVICE_MODEL_AUTO) {
        backend_choose(m, c, d);
        return;
    }
    Device named = backend_device(c->plan.device);
    backend_choose(m, c, &named);
    backend_set_engine(m, c, d);
}
