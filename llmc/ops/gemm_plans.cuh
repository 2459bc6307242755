// gemm_plans -- the plans of a device's products, each made once, by key; and the algorithms that
// another run chose, which plans take. How one plan is made is in gemm_plan.cuh.
#pragma once
#include "gemm_plan.cuh"

/* Rows of a product in one call of cuBLASLt. */
typedef struct {
    Tensor d;
    QOperand a;
    GemmEpilogue epilogue;
} GemmPart;
/* The part that begins at row `row` of d: all of the product; but of f32 values into bf16, which
   cuBLASLt has not, as many rows as the scratch area holds in f32, without the bias. */
GemmPart gemm_part(Device *dev, Tensor d, const QOperand *a, GemmEpilogue epilogue, int64_t row);
/* The plan of this product, made at its first use, with this product's pointers. What the library
   said of it is in status. */
GemmPlan *gemm_plans_get(Device *dev, Tensor d, const QOperand *a, const QOperand *b,
                         GemmEpilogue epilogue);
/* Of the partial sums of slices, which take the end of the workspace. */
size_t gemm_partial_bytes(const GemmKey *key);
/* What that leaves to cuBLASLt. */
size_t gemm_workspace_bytes(Device *dev, const GemmKey *key);
