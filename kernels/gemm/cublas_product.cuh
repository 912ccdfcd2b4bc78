// SPDX-License-Identifier: Apache-2.0
// Matrix products by cuBLAS with fp32 sums, either with its default heuristics or with one algorithm for every number
// of rows; and the passes of matmul, det_gemm and lm_head built on them.
#pragma once

#include <cublasLt.h>
#include <cublas_v2.h>

#include <map>
#include <mutex>
#include <tuple>

#include "lm_head/call.cuh"

namespace checkop::kernels {

// The size that cuBLAS recommends for Hopper. It comes from the host's workspace, so that cuBLAS itself allocates
// nothing.
constexpr size_t kCublasWorkspaceBytes = size_t{32} << 20;
constexpr size_t kVariantBytes = 200;  // of the name of a variant
inline size_t cublas_workspace(const checkop_call*) { return kCublasWorkspaceBytes; }

inline checkop_status cublas_status(const checkop_call* call, cublasStatus_t status, const char* doing) {
  if (status == CUBLAS_STATUS_SUCCESS) return CHECKOP_OK;
  (void)cudaGetLastError();
  return say(call, CHECKOP_FAILED, "%s: %s: %s", doing, cublasGetStatusName(status), cublasGetStatusString(status));
}

/// The handle of the current device, created once per process: creation takes longer than most products. Never
/// destroyed, since the driver may be gone when static objects end.
template <typename Handle>
checkop_status handle_of_device(const checkop_call* call, cublasStatus_t (*create)(Handle*), Handle& handle,
                                int& device) {
  constexpr int kMaxDevices = 64;  // more than one host has
  static std::mutex mutex;
  static Handle handles[kMaxDevices] = {};
  if (auto status = cuda_status(call, cudaGetDevice(&device), "read the current device")) return status;
  if (device < 0 || device >= kMaxDevices) {
    return say(call, CHECKOP_UNSUPPORTED, "device %d, at most %d devices are supported", device, kMaxDevices);
  }
  const std::lock_guard lock(mutex);
  if (handles[device] == nullptr) {
    if (auto status = cublas_status(call, create(&handles[device]), "create a cuBLAS handle")) return status;
  }
  handle = handles[device];
  return CHECKOP_OK;
}

struct Math {
  cudaDataType_t type;
  cublasComputeType_t compute;
  const char* name;

  size_t element_bytes() const { return type == CUDA_R_32F ? 4 : 2; }
};

inline Math math_for(int32_t dtype) {
  switch (dtype) {
    case CHECKOP_F32:  // pedantic: not even an environment variable can turn on TF32
      return {CUDA_R_32F, CUBLAS_COMPUTE_32F_PEDANTIC, "CUBLAS_COMPUTE_32F_PEDANTIC, no TF32"};
    case CHECKOP_F16:
      return {CUDA_R_16F, CUBLAS_COMPUTE_32F, "CUBLAS_COMPUTE_32F, no reduced-precision reduction"};
    default:
      return {CUDA_R_16BF, CUBLAS_COMPUTE_32F, "CUBLAS_COMPUTE_32F, no reduced-precision reduction"};
  }
}

/// A row-major matrix; if `transposed`, the product uses its transpose.
struct CublasOperand {
  const void* data;
  int64_t columns;
  bool transposed;
};

/// out[rows, columns] = left * right, summed over `inner`. cuBLAS is column-major and sees every matrix transposed, so
/// it computes out^T = right^T * left^T: the operands are swapped and need no copy.
struct Multiplication {
  CublasOperand left, right;
  int64_t rows, inner, columns;
  void* out;
  bool adds;           ///< adds to the contents of out, before the one rounding
  bool rows_of_batch;  ///< `rows` are rows of the batch, not of a weight's gradient, which sums over the batch
  const char* doing;

  bool is_empty() const { return rows == 0 || columns == 0; }
};

// Interface: multiply(call, math, m, before, variant) makes all checks that can refuse the call, calls before(),
// enqueues the product, and writes the name of the variant into variant[kVariantBytes].

/// The result of an empty sum; zero has all bits 0 in every dtype.
inline checkop_status clear(const checkop_call* call, const Math& math, const Multiplication& m) {
  if (m.adds) return CHECKOP_OK;
  const auto bytes = static_cast<size_t>(m.rows * m.columns) * math.element_bytes();
  return cuda_status(call, cudaMemsetAsync(m.out, 0, bytes, static_cast<cudaStream_t>(call->stream)), m.doing);
}

/// cublasGemmEx with its default heuristics, which choose the kernel by shape: bits may depend on the number of rows.
struct DefaultCublas {
  template <typename Before>
  static checkop_status multiply(const checkop_call* call, const Math& math, const Multiplication& m,
                                 const Before& before, char* variant) {
    cublasHandle_t handle = nullptr;
    int device = 0, version = 0;
    if (auto status = handle_of_device(call, cublasCreate_v2, handle, device)) return status;
    if (auto status = cublas_status(call, cublasGetVersion(handle, &version), "read the cuBLAS version")) return status;
    snprintf(variant, kVariantBytes, "cuBLAS %d, %s", version, math.name);
    if (m.is_empty()) return CHECKOP_OK;
    before();
    if (m.inner == 0) return clear(call, math, m);
    // Set the stream first: setting it resets the handle to its own workspace.
    auto status =
        cublas_status(call, cublasSetStream(handle, static_cast<cudaStream_t>(call->stream)), "set the cuBLAS stream");
    if (status) return status;
    status = cublas_status(call, cublasSetWorkspace(handle, call->workspace, kCublasWorkspaceBytes),
                           "set the cuBLAS workspace");
    if (status) return status;
    // Without the flag, the partial sums of a split k may be stored in the output's dtype.
    const auto mode = static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
    status = cublas_status(call, cublasSetMathMode(handle, mode), "set the cuBLAS math mode");
    if (status) return status;
    const float one = 1.0f, beta = m.adds ? 1.0f : 0.0f;
    return cublas_status(
        call,
        cublasGemmEx_64(handle, m.right.transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                        m.left.transposed ? CUBLAS_OP_T : CUBLAS_OP_N, m.columns, m.rows, m.inner, &one, m.right.data,
                        math.type, m.right.columns, m.left.data, math.type, m.left.columns, &beta, m.out, math.type,
                        m.columns, math.compute, CUBLAS_GEMM_DEFAULT),
        m.doing);
  }
};

/// cuBLASLt without split k. Any number of rows uses the algorithm that the heuristics choose for kReferenceRows, so
/// every element is summed in the same order in every batch. Gradients of weights, which sum over the batch, use the
/// algorithm chosen for their own size.
struct InvariantCublas {
  static constexpr int64_t kReferenceRows = 1024;  // gives a large tile; small batches are slower than they could be
  static constexpr uint32_t kAlignment = 16;       // of pointers: the algorithm must not depend on them

  template <typename Before>
  static checkop_status multiply(const checkop_call* call, const Math& math, const Multiplication& m,
                                 const Before& before, char* variant) {
    cublasLtHandle_t handle = nullptr;
    int device = 0;
    if (auto status = handle_of_device(call, cublasLtCreate, handle, device)) return status;
    snprintf(variant, kVariantBytes, "empty output: nothing to compute");
    if (m.is_empty()) return CHECKOP_OK;
    if (m.inner == 0) {
      before();
      return clear(call, math, m);
    }
    for (const void* data : {m.left.data, m.right.data, static_cast<const void*>(m.out)}) {
      if (reinterpret_cast<uintptr_t>(data) % kAlignment != 0) {
        return say(call, CHECKOP_UNSUPPORTED, "%s: a tensor is not aligned to %u bytes", m.doing, kAlignment);
      }
    }
    cublasLtMatmulAlgo_t algorithm;
    const int64_t chosen_for = m.rows_of_batch ? kReferenceRows : m.rows;
    if (auto status = find(call, handle, device, math, m, chosen_for, algorithm)) return status;
    Layouts layouts(math, m, m.rows);
    cublasLtMatmulHeuristicResult_t checked;
    if (!layouts.made || !accepts(handle, layouts, algorithm, checked)) {
      return say(call, CHECKOP_UNSUPPORTED, "%s: the algorithm chosen for %lld rows does not support %lld rows",
                 m.doing, static_cast<long long>(chosen_for), static_cast<long long>(m.rows));
    }
    snprintf(variant, kVariantBytes, "cuBLASLt %zu, %s, algorithm %d, tile id %d, stages id %d, chosen for %lld rows",
             cublasLtGetVersion(), math.name, attribute(algorithm, CUBLASLT_ALGO_CONFIG_ID),
             attribute(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID), attribute(algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID),
             static_cast<long long>(chosen_for));
    before();
    const float one = 1.0f, beta = m.adds ? 1.0f : 0.0f;
    return cublas_status(
        call,
        cublasLtMatmul(handle, &layouts.product, &one, m.right.data, &layouts.right, m.left.data, &layouts.left, &beta,
                       m.out, &layouts.out, m.out, &layouts.out, &algorithm, call->workspace, kCublasWorkspaceBytes,
                       static_cast<cudaStream_t>(call->stream)),
        m.doing);
  }

 private:
  struct Layouts {
    Layouts(const Math& math, const Multiplication& m, int64_t rows) {
      const cublasOperation_t right_op = m.right.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
      const cublasOperation_t left_op = m.left.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
      const auto columns = static_cast<uint64_t>(m.columns), inner = static_cast<uint64_t>(m.inner);
      const auto n = static_cast<uint64_t>(rows);
      const auto ok = [](cublasStatus_t status) { return status == CUBLAS_STATUS_SUCCESS; };
      made = ok(cublasLtMatmulDescInit(&product, math.compute, CUDA_R_32F)) &&
             ok(cublasLtMatmulDescSetAttribute(&product, CUBLASLT_MATMUL_DESC_TRANSA, &right_op, sizeof right_op)) &&
             ok(cublasLtMatmulDescSetAttribute(&product, CUBLASLT_MATMUL_DESC_TRANSB, &left_op, sizeof left_op)) &&
             ok(cublasLtMatrixLayoutInit(&right, math.type, m.right.transposed ? inner : columns,
                                         m.right.transposed ? columns : inner, m.right.columns)) &&
             ok(cublasLtMatrixLayoutInit(&left, math.type, m.left.transposed ? n : inner, m.left.transposed ? inner : n,
                                         m.left.columns)) &&
             ok(cublasLtMatrixLayoutInit(&out, math.type, columns, n, m.columns));
    }

    bool made;
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t right, left, out;
  };

  static int attribute(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t which) {
    int32_t value = -1;
    size_t written = 0;
    const auto status = cublasLtMatmulAlgoConfigGetAttribute(&algorithm, which, &value, sizeof value, &written);
    return status == CUBLAS_STATUS_SUCCESS ? value : -1;
  }

  static bool accepts(cublasLtHandle_t handle, Layouts& layouts, const cublasLtMatmulAlgo_t& algorithm,
                      cublasLtMatmulHeuristicResult_t& result) {
    return cublasLtMatmulAlgoCheck(handle, &layouts.product, &layouts.right, &layouts.left, &layouts.out, &layouts.out,
                                   &algorithm, &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= kCublasWorkspaceBytes;
  }

  /// The algorithm for `rows` rows that also accepts a single row; looked up once per process.
  static checkop_status find(const checkop_call* call, cublasLtHandle_t handle, int device, const Math& math,
                             const Multiplication& m, int64_t rows, cublasLtMatmulAlgo_t& algorithm) {
    using Key = std::tuple<int, cudaDataType_t, bool, bool, bool, int64_t, int64_t, int64_t>;
    static std::mutex mutex;
    static std::map<Key, cublasLtMatmulAlgo_t> known;
    const Key key{device, math.type, m.left.transposed, m.right.transposed, m.adds, rows, m.inner, m.columns};
    const std::lock_guard lock(mutex);
    if (const auto found = known.find(key); found != known.end()) {
      algorithm = found->second;
      return CHECKOP_OK;
    }
    constexpr int kAsked = 32;
    Layouts layouts(math, m, rows), single(math, m, m.rows_of_batch ? 1 : rows);
    cublasLtMatmulPreferenceOpaque_t preference;
    auto made = cublasLtMatmulPreferenceInit(&preference);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t which, auto value) {
      if (made == CUBLAS_STATUS_SUCCESS) {
        made = cublasLtMatmulPreferenceSetAttribute(&preference, which, &value, sizeof value);
      }
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kCublasWorkspaceBytes});
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
    for (const auto which : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                             CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      prefer(which, kAlignment);
    }
    if (auto status = cublas_status(call, made, "set the cuBLASLt preferences")) return status;
    cublasLtMatmulHeuristicResult_t found[kAsked];
    int n = 0;
    if (layouts.made && single.made) {
      const auto status = cublasLtMatmulAlgoGetHeuristic(handle, &layouts.product, &layouts.right, &layouts.left,
                                                         &layouts.out, &layouts.out, &preference, kAsked, found, &n);
      if (status != CUBLAS_STATUS_SUCCESS) n = 0;
    }
    for (int i = 0; i < n; ++i) {
      cublasLtMatmulHeuristicResult_t result;
      if (found[i].state != CUBLAS_STATUS_SUCCESS) continue;
      if (attribute(found[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) > 1) continue;
      if (!accepts(handle, single, found[i].algo, result)) continue;
      known[key] = algorithm = found[i].algo;
      return CHECKOP_OK;
    }
    return say(call, CHECKOP_UNSUPPORTED, "%s: cuBLASLt has no algorithm without split-K for this shape", m.doing);
  }
};

/// matmul and det_gemm: c = a b; backward da = grad_c b^T, db = a^T grad_c.
template <typename Cublas>
checkop_status launch_cublas_matmul(const checkop_call* call, bool backward) {
  if (auto status = check_matmul(call, backward, kCublasWorkspaceBytes)) return status;
  const auto [rows, k_dim, n_dim] = matmul_shape(call);
  const Math math = math_for(call->inputs[0].dtype);
  const void *a = call->inputs[0].data, *b = call->inputs[1].data;
  char variant[2][kVariantBytes] = {};
  if (!backward) {
    const Multiplication c{{a, k_dim, false}, {b, n_dim, false}, rows, k_dim, n_dim, call->outputs[0].data, false, true,
                           "c = a b"};
    if (auto status = Cublas::multiply(
            call, math, c, [] {}, variant[0]))
      return status;
    say(call, CHECKOP_OK, "%s", variant[0]);
    return launch_status(call, "launch c = a b");
  }
  const void* grad = call->inputs[2].data;
  const Multiplication da{
      {grad, n_dim, false}, {b, n_dim, true}, rows, n_dim, k_dim, call->outputs[0].data, false, true,
      "da = grad_c b^T"};
  const Multiplication db{
      {a, k_dim, true}, {grad, n_dim, false}, k_dim, rows, n_dim, call->outputs[1].data, false, false,
      "db = a^T grad_c"};
  if (auto status = Cublas::multiply(
          call, math, da, [] {}, variant[0]))
    return status;
  if (auto status = Cublas::multiply(
          call, math, db, [] {}, variant[1]))
    return status;
  say(call, CHECKOP_OK, "da: %s; db: %s", variant[0], variant[1]);
  return launch_status(call, "launch da = grad_c b^T, db = a^T grad_c");
}

/// out[row, column] = bias[column]; the product is then added to it.
template <typename T>
static __global__ void copy_bias(const T* __restrict__ bias, int64_t rows, int64_t columns, T* __restrict__ out) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows * columns;
       i += int64_t{gridDim.x} * blockDim.x) {
    out[i] = bias[i % columns];
  }
}

/// logits = hidden weight^T + bias; backward dhidden = grad weight, dweight = grad^T hidden, dbias = sums of grad.
template <typename Cublas>
checkop_status launch_cublas_lm_head(const checkop_call* call, bool backward) {
  if (auto status = lm_head::check_tensors(call, backward)) return status;
  if (auto status = CallCheck(call).workspace(kCublasWorkspaceBytes).status()) return status;
  const auto [rows, hidden, vocab] = lm_head::shape_of(call);
  const Math math = math_for(call->inputs[0].dtype);
  const void *x = call->inputs[0].data, *weight = call->inputs[1].data, *bias = call->inputs[2].data;
  const auto stream = static_cast<cudaStream_t>(call->stream);
  char variant[2][kVariantBytes] = {};
  constexpr unsigned kThreads = 256;
  if (!backward) {
    const Multiplication logits{{x, hidden, false},
                                {weight, hidden, true},
                                rows,
                                hidden,
                                vocab,
                                call->outputs[0].data,
                                bias != nullptr,
                                true,
                                "logits = hidden weight^T"};
    const auto copy = [&] {
      if (bias == nullptr) return;
      constexpr int64_t kMaxBlocks = 4096;  // several waves; the kernel strides over the rest
      const auto blocks = static_cast<unsigned>(std::min(kMaxBlocks, ceil_div(rows * vocab, kThreads)));
      with_float_type(call->inputs[0].dtype, [&]<typename Tag>(Tag) {
        using T = typename Tag::type;
        copy_bias<T><<<blocks, kThreads, 0, stream>>>(static_cast<const T*>(bias), rows, vocab,
                                                      static_cast<T*>(call->outputs[0].data));
        return CHECKOP_OK;
      });
    };
    if (auto status = Cublas::multiply(call, math, logits, copy, variant[0])) return status;
    say(call, CHECKOP_OK, "%s", variant[0]);
    return launch_status(call, "launch logits = hidden weight^T");
  }
  const void* grad = call->inputs[3].data;
  const Multiplication dhidden{
      {grad, vocab, false},          {weight, hidden, false}, rows, vocab, hidden, call->outputs[0].data, false, true,
      "dhidden = grad_logits weight"};
  const Multiplication dweight{{grad, vocab, true},
                               {x, hidden, false},
                               vocab,
                               rows,
                               hidden,
                               call->outputs[1].data,
                               false,
                               false,
                               "dweight = grad_logits^T hidden"};
  if (auto status = Cublas::multiply(
          call, math, dhidden, [] {}, variant[0]))
    return status;
  if (auto status = Cublas::multiply(
          call, math, dweight, [] {}, variant[1]))
    return status;
  if (call->outputs[2].data != nullptr && vocab > 0) {
    with_float_type(call->inputs[0].dtype, [&]<typename Tag>(Tag) {
      using T = typename Tag::type;
      const auto blocks = static_cast<unsigned>(ceil_div(vocab, lm_head::kThreads));
      lm_head::sum_rows<T><<<blocks, lm_head::kThreads, 0, stream>>>(static_cast<const T*>(grad), rows, vocab,
                                                                     static_cast<T*>(call->outputs[2].data));
      return CHECKOP_OK;
    });
  }
  say(call, CHECKOP_OK, "dhidden: %s; dweight: %s", variant[0], variant[1]);
  return launch_status(call, "launch dhidden, dweight and dbias");
}

}  // namespace checkop::kernels
