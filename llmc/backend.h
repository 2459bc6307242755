/*
backend -- decides, once and before memory is laid out, what multiplies the NVFP4 operands of a run
on the device at hand, and says it in the words of plans and log lines. Multiplies nothing.

  precision.backend  precision.gemm   FP4 units            no FP4 units
  auto               cublaslt         FP4_LIBRARY          FP4_EMULATED
  auto               mma              FP4_MMA              FP4_MMA, in software
  native             either           as auto              refused
  emulate            cublaslt         FP4_EMULATED         FP4_EMULATED
  emulate            mma              refused              refused
mma.sync of FP4 exists on sm_120 and sm_121 only: elsewhere FP4_MMA is software, and native refuses
it. A CPU emulates, and refuses mma.
*/
#ifndef LLMC_BACKEND_H
#define LLMC_BACKEND_H

#include "config.h"
#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets the engine's device and fp4, after model_declare. Dies with EXIT_CONFIG where the keys ask
   for what the device does not have, or where packed operands cannot have the sizes of some linear,
   which it names. */
void backend_choose(Model *m, const Config *c, Device *d);
/* 1 where FP4 units do the work of `fp4` on this device. */
int backend_is_native(Fp4Gemm fp4, const Device *d);
/* "native", "emulated", "software"; of FP4_EMULATED without asking the device. */
const char *backend_name(Fp4Gemm fp4, const Device *d);
/* What runs one GEMM of a linear: "cuBLASLt bf16", "cuBLASLt nvfp4", "mma.sync nvfp4",
   "OpenBLAS". */
const char *backend_kernel(const Engine *e, const Linear *l, GemmKind g);

#ifdef __cplusplus
}
#endif
#endif
