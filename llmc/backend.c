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

static NORETURN void refuse_native(const Config *c, const Device *d) {
    int mma = c->precision.gemm == GEMM_KERNEL_MMA;
    const char *why = d->native_fp4 ? "mma.sync of FP4 (sm_120, sm_121)" : "FP4 tensor cores";
    const char *instead = "precision.backend=emulate";
    if (mma) instead = "precision.backend=emulate and precision.gemm=cublaslt";
    if (d->native_fp4) instead = "precision.backend=auto, or precision.gemm=cublaslt";
    die(EXIT_CONFIG,
        "precision.backend is native and precision.gemm is %s, but %s has no %s; set %s",
        gemm_kernel_names[c->precision.gemm], d->name, why, instead);
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
        refuse_native(c, d);
}

/* And of FP8. */
static void check_fp8(const Config *c, const Device *d) {
    if (c->precision.backend != BACKEND_NATIVE || d->native_fp8) return;
    die(EXIT_CONFIG,
        "precision.backend is native and operands are FP8, but %s has no FP8 tensor cores "
        "(sm_89 and later); set precision.backend=emulate",
        d->name);
}

/* Whether the GPU's convert would round some operand of the model, as the engine is set. */
static int rounds_in_hardware(Model *m) {
    for (int i = 0; i < NUM_GEMMS * NUM_SIDES * model_num_linears(m); i++) {
        const Linear *l = model_linear(m, i / (NUM_GEMMS * NUM_SIDES));
        GemmKind g = (GemmKind)(i / NUM_SIDES % NUM_GEMMS);
        Side s = (Side)(i % NUM_SIDES);
        int token = g == GEMM_WGRAD || (g == GEMM_DGRAD && s == SIDE_B);
        if (linear_gemm_form(&m->engine, l, g) == FORM_PACKED &&
            quantize_can_round_in_hardware(&l->plan.cell[g][s], token))
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

/* Whether operands of the model have a format that has blocks, or one that has none. */
static int has_operands(Model *m, int with_blocks) {
    for (int id = 0; id < model_num_linears(m); id++) {
        const LinearPlan *plan = &model_linear(m, id)->plan;
        for (int i = 0; i < NUM_GEMMS * NUM_SIDES; i++) {
            const Operand *o = &plan->cell[i / NUM_SIDES][i % NUM_SIDES];
            if (with_blocks ? operand_has_blocks(o) : operand_is_fp8(o)) return 1;
        }
    }
    return 0;
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
static void warn_idle_keys(const Config *c, int has_nvfp4, int has_fp8) {
    if (c->precision.gemm == GEMM_KERNEL_MMA && !has_nvfp4) {
        log_warn("precision.gemm=mma changes nothing: it matters to NVFP4 only, and no operand of "
                 "this run is NVFP4");
    }
    if (c->precision.backend == BACKEND_NATIVE && !has_nvfp4 && !has_fp8)
        log_warn("precision.backend=native changes nothing: no operand of this run is quantised");
}

static void set_engine(Model *m, const Config *c, Device *d) {
    Engine *e = &m->engine;
    e->device = d;
    e->fp4 = has_operands(m, 1) ? backend_fp4(c, d) : FP4_EMULATED;
    e->fp8 = has_operands(m, 0) && backend_fp8(c, d);
    e->hardware_rounding = c->precision.stochastic == STOCHASTIC_HARDWARE &&
                           e->fp4 != FP4_EMULATED && quantize_has_hardware_rounding(d);
}

void backend_choose(Model *m, const Config *c, Device *d) {
    int has_nvfp4 = has_operands(m, 1), has_fp8 = has_operands(m, 0);
    warn_idle_keys(c, has_nvfp4, has_fp8);
    if (has_nvfp4) check_fp4(c, d);
    if (has_fp8) check_fp8(c, d);
    set_engine(m, c, d);
    check_stochastic(m, c, d);
    for (int id = 0; id < model_num_linears(m); id++)
        check_sizes(&m->engine, model_linear(m, id), (int64_t)c->batch.micro * c->batch.seq_len);
}

void backend_choose_for_plan(Model *m, const Config *c, Device *d) {
    if (c->plan.device == DEVICE_MODEL_AUTO) {
        backend_choose(m, c, d);
        return;
    }
    Device named = backend_device(c->plan.device);
    backend_choose(m, c, &named);
    set_engine(m, c, d);
}
