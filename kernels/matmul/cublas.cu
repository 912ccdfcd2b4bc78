// SPDX-License-Identifier: Apache-2.0
// matmul / cublas: cublasGemmEx with its default heuristics, sums in fp32.
//   forward   c = a * b                  a, da: [rows, k_dim]    b, db: [k_dim, n_dim]    c, grad_c: [rows, n_dim]
//   backward  da = grad_c * b^T, db = a^T * grad_c               all of one dtype, f32|f16|bf16, row-major, contiguous
//   Limits: extents whose product with the element size cuBLAS can address (64-bit).
//   Expected error: contraction class, one fp32 accumulation per element and one output rounding. For fp16 and bf16 the
//   partial sums of a split k stay in fp32, and fp32 inputs never pass through TF32; the message says so.
//   Bits may depend on the number of rows: the heuristics choose the kernel by shape.
#include <cublas_v2.h>

#include <mutex>

#include "matmul_call.cuh"

namespace checkop::kernels {
namespace {

// What cuBLAS advises for Hopper. It comes from the host's workspace, so that cuBLAS allocates nothing on our behalf.
constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int kMaxDevices = 64;  // more than one host has

checkop_status cublas_status(const checkop_call* call, cublasStatus_t status, const char* doing) {
  if (status == CUBLAS_STATUS_SUCCESS) return CHECKOP_OK;
  (void)cudaGetLastError();
  return say(call, CHECKOP_FAILED, "%s: %s: %s", doing, cublasGetStatusName(status), cublasGetStatusString(status));
}

/// The handle of the current device, created once per process: creation takes longer than most products. Never
/// destroyed, since the driver may be gone when static objects end.
checkop_status handle_of_device(const checkop_call* call, cublasHandle_t& handle) {
  static std::mutex mutex;
  static cublasHandle_t handles[kMaxDevices] = {};
  int device = 0;
  if (auto status = cuda_status(call, cudaGetDevice(&device), "read the current device")) return status;
  if (device < 0 || device >= kMaxDevices) {
    return say(call, CHECKOP_UNSUPPORTED, "device %d, at most %d devices are supported", device, kMaxDevices);
  }
  const std::lock_guard lock(mutex);
  if (handles[device] == nullptr) {
    if (auto status = cublas_status(call, cublasCreate(&handles[device]), "create a cuBLAS handle")) return status;
  }
  handle = handles[device];
  return CHECKOP_OK;
}

struct Math {
  cudaDataType_t type;
  cublasComputeType_t compute;
  const char* words;
};

Math math_for(int32_t dtype) {
  switch (dtype) {
    case CHECKOP_F32:  // pedantic: not even an environment variable turns on TF32
      return {CUDA_R_32F, CUBLAS_COMPUTE_32F_PEDANTIC, "CUBLAS_COMPUTE_32F_PEDANTIC, no TF32"};
    case CHECKOP_F16:
      return {CUDA_R_16F, CUBLAS_COMPUTE_32F, "CUBLAS_COMPUTE_32F, no reduced-precision reduction"};
    default:
      return {CUDA_R_16BF, CUBLAS_COMPUTE_32F, "CUBLAS_COMPUTE_32F, no reduced-precision reduction"};
  }
}

/// A row-major matrix as an operand; transposed: the product takes its transpose.
struct Operand {
  const void* data;
  int64_t columns;
  bool transposed;
};

/// out[rows, columns] = left * right, summed over `inner`. cuBLAS is column-major and sees every matrix transposed, so
/// it is asked for out^T = right^T * left^T: the operands change places and need no copy.
checkop_status multiply(const checkop_call* call, cublasHandle_t handle, const Math& math, const Operand& left,
                        const Operand& right, int64_t rows, int64_t inner, int64_t columns, void* out,
                        const char* doing) {
  if (rows == 0 || columns == 0) return CHECKOP_OK;
  if (inner == 0) {  // a sum of nothing; zero has the bits 0 in all three dtypes
    const size_t element_bytes = math.type == CUDA_R_32F ? 4 : 2;
    const auto bytes = static_cast<size_t>(rows * columns) * element_bytes;
    return cuda_status(call, cudaMemsetAsync(out, 0, bytes, static_cast<cudaStream_t>(call->stream)), doing);
  }
  const float one = 1.0f, zero = 0.0f;
  return cublas_status(
      call,
      cublasGemmEx_64(handle, right.transposed ? CUBLAS_OP_T : CUBLAS_OP_N, left.transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                      columns, rows, inner, &one, right.data, math.type, right.columns, left.data, math.type,
                      left.columns, &zero, out, math.type, columns, math.compute, CUBLAS_GEMM_DEFAULT),
      doing);
}

checkop_status launch(const checkop_call* call, bool backward) {
  if (auto status = check_matmul(call, backward, kWorkspaceBytes)) return status;
  const auto [rows, k_dim, n_dim] = matmul_sizes(call);
  const Math math = math_for(call->inputs[0].dtype);
  cublasHandle_t handle = nullptr;
  if (auto status = handle_of_device(call, handle)) return status;
  // The stream first: setting it gives the handle back its own workspace.
  auto status = cublas_status(call, cublasSetStream(handle, static_cast<cudaStream_t>(call->stream)), "set the stream");
  if (status) return status;
  status = cublas_status(call, cublasSetWorkspace(handle, call->workspace, call->workspace_bytes), "set the workspace");
  if (status) return status;
  // Without the flag, the partial sums of a split k may be stored in the output's dtype.
  const auto mode = static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
  status = cublas_status(call, cublasSetMathMode(handle, mode), "set the math mode");
  if (status) return status;

  const void *a = call->inputs[0].data, *b = call->inputs[1].data;
  if (backward) {
    const void* grad_c = call->inputs[2].data;
    status = multiply(call, handle, math, {grad_c, n_dim, false}, {b, n_dim, true}, rows, n_dim, k_dim,
                      call->outputs[0].data, "da = grad_c * b^T");
    if (status) return status;
    status = multiply(call, handle, math, {a, k_dim, true}, {grad_c, n_dim, false}, k_dim, rows, n_dim,
                      call->outputs[1].data, "db = a^T * grad_c");
  } else {
    status = multiply(call, handle, math, {a, k_dim, false}, {b, n_dim, false}, rows, k_dim, n_dim,
                      call->outputs[0].data, "c = a * b");
  }
  if (status) return status;
  int version = 0;
  if ((status = cublas_status(call, cublasGetVersion(handle, &version), "read the version"))) return status;
  say(call, CHECKOP_OK, "cuBLAS %d, %s", version, math.words);
  return launch_status(call, backward ? "launch matmul backward" : "launch matmul forward");
}

checkop_status launch_forward(const checkop_call* call) { return launch(call, false); }
checkop_status launch_backward(const checkop_call* call) { return launch(call, true); }
size_t workspace_bytes(const checkop_call*) { return kWorkspaceBytes; }

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cublas", "matmul", "forward", CHECKOP_CUDA, 80, 0, workspace_bytes, launch_forward},
    {sizeof(checkop_kernel), "cublas", "matmul", "backward", CHECKOP_CUDA, 80, 0, workspace_bytes, launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
