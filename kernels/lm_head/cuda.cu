// SPDX-License-Identifier: Apache-2.0
// lm_head / cuda: portable CUDA, one fp32 accumulator per element; fp16 and bf16 on tensor cores, fp32 on CUDA cores.
//   forward   logits = hidden * weight^T + bias
//   backward  dhidden = grad_logits * weight,  dweight = grad_logits^T * hidden,  dbias = sum of grad_logits over rows
//   hidden, dhidden: [rows, hidden]   weight, dweight: [vocab, hidden]   bias, dbias: [vocab], optional
//   logits, grad_logits: [rows, vocab]        all of one dtype, f32|f16|bf16, row-major, contiguous
//   Limits: fp32: hidden and vocab <= 65535 * 128, outputs at 16-byte boundaries.
//   Workspace: fp32: a copy of logits, or of the larger one of dhidden and dweight, with rows padded to a multiple of 4
//   where they are not one. Otherwise none.
//   Expected error: contraction class; fp16 and bf16: a chain of k/16 blocks, fp32: chains of 512 + k/512, then the
//   bias in fp32 and one rounding. dbias: reduction class, chains of 512 + rows/512. The bits of a row do not depend on
//   the other rows: see gemm/mma.cuh and gemm/tile.cuh.
#include "lm_head/call.cuh"

namespace checkop::kernels {
namespace {

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "lm_head", "forward", CHECKOP_CUDA, 80, 0, lm_head::forward_workspace,
     lm_head::launch_forward<PortableProduct>},
    {sizeof(checkop_kernel), "cuda", "lm_head", "backward", CHECKOP_CUDA, 80, 0, lm_head::backward_workspace,
     lm_head::launch_backward<PortableProduct>},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
