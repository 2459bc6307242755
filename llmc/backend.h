/*
backend -- decides, once and before memory is laid out, what multiplies the quantised operands of a
run on the device at hand, or would on a named GPU, and says it in the words of plans and log lines.
Multiplies nothing.

NVFP4 on both sides of a GEMM:
  precision.backend  precision.gemm   FP4 units            no FP4 units
  auto               cublaslt         FP4_LIBRARY          FP4_EMULATED
  auto               mma              FP4_MMA              FP4_MMA, in software
  native             either           as auto              refused
  emulate            cublaslt         FP4_EMULATED         FP4_EMULATED
  emulate            mma              refused              refused
mma.sync of FP4 exists on sm_120 and sm_121 only: elsewhere FP4_MMA is software, and native refuses
it. A CPU emulates, and refuses mma.

FP8 on both sides, whatever precision.gemm is:
  precision.backend  FP8 units              no FP8 units
  auto               codes, by cuBLASLt     emulated
  native             codes, by cuBLASLt     refused
  emulate            emulated               emulated

Every other pair of formats is emulated everywhere: NVFP4 by FP8, either by BF16, E5M2 by E5M2, and
whatever is of MXFP4, MXFP8 or another format. No GPU multiplies these here; native refuses a device
for the units that it lacks, and a run for having nothing but such pairs, not for having some.
Judged are all phases of precision.schedule at once.

precision.stochastic=hardware lets the convert of sm_100 and sm_103 round packed NVFP4 operands that
are stochastic with 8 dither bits; the run's other operands are rounded in software. It is refused
on other devices, where NVFP4 is emulated, and where no operand is of that kind.
*/
#ifndef LLMC_BACKEND_H
#define LLMC_BACKEND_H

#include "config.h"
#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets the engine's device, fp4, fp8 and hardware_rounding, after model_declare. Dies with
   EXIT_CONFIG where the keys ask for what the device does not have, or where packed operands cannot
   have the sizes of some linear, which it names. Warns of keys that change nothing in this run. */
void backend_choose(Model *m, const Config *c, Device *d);
/* The same for the verb plan. A GPU that plan.device names is the one that the keys are judged by;
   `d`, whose engine is set, then does what it can of them. */
void backend_choose_for_plan(Model *m, const Config *c, Device *d);
/* The engine of a device that was judged before, or is to do what it can. */
void backend_set_engine(Model *m, const Config *c, Device *d);
/* Of a GPU that need not be there, as much as this module and gemm_slices ask of a device. */
Device backend_device(DeviceModel model);
/* What would multiply NVFP4 operands on this device, and whether FP8 codes would be: as near to the
   keys as it can, with no refusal. */
Fp4Gemm backend_fp4(const Config *c, const Device *d);
int backend_fp8(const Config *c, const Device *d);
/* 1 where FP4 units do the work of `fp4` on this device. */
int backend_is_native(Fp4Gemm fp4, const Device *d);
/* "native", "emulated", "software"; of FP4_EMULATED without asking the device. */
const char *backend_name(Fp4Gemm fp4, const Device *d);
/* The same of one GEMM with a quantised operand. */
const char *backend_gemm_name(const Engine *e, const Linear *l, GemmKind g);
/* The same of all of a model's GEMMs with quantised operands: what they have in common, else
   "mixed"; "plain" where there is none. */
const char *backend_run_name(Model *m);
/* What runs one GEMM of a linear: "cuBLASLt bf16", "cuBLASLt fp8", "cuBLASLt nvfp4", "mma.sync
   nvfp4", "OpenBLAS". */
const char *backend_kernel(const Engine *e, const Linear *l, GemmKind g);

#ifdef __cplusplus
}
#endif
#endif
