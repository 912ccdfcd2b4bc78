// SPDX-License-Identifier: Apache-2.0
// logp / cuda: one block or cluster per row, log-sum-exp in fp32 in one pass over the row, portable CUDA.
//   forward   logp[row] = z[row,t] - lse(z[row,:]),  t = token_ids[row]
//   backward  dlogits[row,c] = g[row] * ((c == t) - softmax(z[row,:])[c]) * dz/dlogits,  g = grad_logp
//   z = softcap tanhf(logits / softcap) / temperature, or logits / temperature if softcap is 0
//   logits, dlogits: [rows, vocab] f32|f16|bf16, contiguous     token_ids: [rows] i64     logp, grad_logp: [rows] f32
//   If token_ids[row] = ignore_index: logp and gradient are 0, and the row of logits is not read.
//   top_k, top_p: only columns that stay count; see cuda/truncation.cuh, whose kernel reads a row some ten times
//   Limits: rows < 2^31, vocab 1 to 2^30, to 2^22 with top_k or top_p. Other ids outside [0, vocab) are CHECKOP_FAILED.
//   Workspace: 256 bytes.
//   Backward, from sm_90 on: the blocks of a cluster hold a row in shared memory and read it once (held_row.cuh).
//   Expected error: a chain of about vocab/1024 + 20 fp32 additions, expf and logf within 2 ulp, one output rounding.
//   A row's bits depend only on its own values: see cuda/softmax.cuh.
#include "cuda/held_row.cuh"
#include "cuda/ids.cuh"
#include "cuda/softmax.cuh"
#include "cuda/truncation.cuh"

namespace checkop::kernels {
namespace {

/// logp of one row per block. Error: see the head of the file.
template <typename T, typename Transform>
__global__ __launch_bounds__(kMaxThreads, kBlocksPerSM) void logp_forward(const T* __restrict__ logits,
                                                                          const int64_t* __restrict__ token_ids,
                                                                          int64_t ignored, int64_t vocab,
                                                                          Transform transform, float* __restrict__ logp,
                                                                          int slots) {
  const int64_t row = blockIdx.x, target = token_ids[row];
  if (target == ignored) {  // the same for the whole block
    if (threadIdx.x == 0) logp[row] = 0.0f;
    return;
  }
  const T* __restrict__ x = logits + row * vocab;
  StepRing ring(slots);
  const auto reduce = [&](const auto& steps) { return reduce_row(ring, steps, transform); };
  const Partial total = with_steps(vocab, reduce, x);
  if (threadIdx.x != 0) return;
  if (target < 0 || target >= vocab) return;  // IdCheck refuses it
  // (z - max) first: the difference is small and nearly exact, but max + log(sum) may be large.
  logp[row] = (transform.apply(to_float(x[target])) - total.max) - logf(total.sum);
}

/// dlogits of one row per block.
template <typename T, typename Transform>
__global__ __launch_bounds__(kMaxBackwardThreads) void logp_backward(
    const T* __restrict__ logits, const int64_t* __restrict__ token_ids, const float* __restrict__ grad_logp,
    int64_t ignored, int64_t vocab, Transform transform, T* __restrict__ dlogits, int slots) {
  const int64_t row = blockIdx.x;
  if (token_ids[row] == ignored) return write_zeros(dlogits + row * vocab, vocab);  // the whole block
  StepRing ring(slots);
  const auto write = [&](const auto& x) {
    const Partial total = reduce_row(ring, x, transform);
    write_gradient(ring, x, total, grad_logp[row], token_ids[row], dlogits + row * vocab, transform);
  };
  with_steps(vocab, write, logits + row * vocab);
}

/// The same, one row per cluster, whose blocks hold `groups` groups each. From sm_90 on.
template <typename T, typename Transform>
__global__ __launch_bounds__(kHeldThreads, kHeldBlocksPerSM) void logp_backward_held(
    const T* __restrict__ logits, const int64_t* __restrict__ token_ids, const float* __restrict__ grad_logp,
    int64_t ignored, int64_t vocab, Transform transform, T* __restrict__ dlogits, int groups) {
#if __CUDA_ARCH__ >= 900
  const int64_t row = HeldRow<T>::number(), target = token_ids[row];
  T* __restrict__ dx = dlogits + row * vocab;
  if (target == ignored) return write_zeros(dx, vocab, HeldRow<T>::rank(), groups);  // the whole cluster
  HeldRow<T> held(logits + row * vocab, vocab, groups);
  const float grad = grad_logp[row];
  const Partial total = held.reduce(transform).of[0];
  held.write(total, grad, target, dx, transform);
#endif
}

struct LogpParams {
  int64_t rows, vocab, ignored;
  LogitTransform transform;
  TruncationAttributes truncation;
};

checkop_status check_call(const checkop_call* call, bool backward, LogpParams& params) {
  CallCheck check(call);
  if (check.counts(backward ? 3 : 2, 1).failed()) return check.status();
  const checkop_tensor &logits = call->inputs[0], &ids = call->inputs[1];
  if (check.rank_at_least(logits, "logits", 1).failed()) return check.status();
  params = {leading_count(logits), last_extent(logits), 0, {}, {}};
  if (auto status = read_attributes(call, params.ignored, params.transform)) return status;
  if (auto status = read_truncation(call, params.truncation)) return status;
  const int32_t n_leading = logits.rank - 1;
  check.float_dtype(logits, "logits").contiguous(logits, "logits");
  check.dtype(ids, "token_ids", CHECKOP_I64)
      .shape(ids, "token_ids", logits, n_leading, {})
      .contiguous(ids, "token_ids");
  if (backward) {
    const checkop_tensor &grad = call->inputs[2], &dlogits = call->outputs[0];
    check.dtype(grad, "grad_logp", CHECKOP_F32).shape(grad, "grad_logp", logits, n_leading, {});
    check.contiguous(grad, "grad_logp").dtype(dlogits, "dlogits", logits.dtype);
    check.shape(dlogits, "dlogits", logits, logits.rank, {}).contiguous(dlogits, "dlogits");
  } else {
    const checkop_tensor& logp = call->outputs[0];
    check.dtype(logp, "logp", CHECKOP_F32).shape(logp, "logp", logits, n_leading, {}).contiguous(logp, "logp");
  }
  if (check.failed()) return check.status();
  if (auto status = check_rows(call, "logits", params.rows, params.vocab)) return status;
  constexpr int64_t kMostTruncated = int64_t{1} << 22;  // so many exponentials in units of 2^-40 fit 64 bits
  if (!params.truncation.is_none() && params.vocab > kMostTruncated) {
    return say(call, CHECKOP_UNSUPPORTED,
               "tensor 'logits': %lld columns, at most %lld are supported with top_k or top_p",
               static_cast<long long>(params.vocab), static_cast<long long>(kMostTruncated));
  }
  return check.workspace(kIdCheckBytes).status();
}

size_t workspace_bytes(const checkop_call*) { return kIdCheckBytes; }

template <typename T, typename Transform>
checkop_status launch(const checkop_call* call, const LogpParams& params, const Transform& transform, bool backward) {
  auto* stream = static_cast<cudaStream_t>(call->stream);
  const auto* logits = static_cast<const T*>(call->inputs[0].data);
  const auto* ids = static_cast<const int64_t*>(call->inputs[1].data);
  if (!params.truncation.is_none()) {
    const auto rows = static_cast<unsigned>(params.rows);
    if (backward) {
      truncated_logp_backward<<<rows, kTruncationThreads, 0, stream>>>(
          logits, ids, static_cast<const float*>(call->inputs[2].data), params.ignored, params.vocab, transform,
          params.truncation, static_cast<T*>(call->outputs[0].data));
    } else {
      truncated_logp_forward<<<rows, kTruncationThreads, 0, stream>>>(logits, ids, params.ignored, params.vocab,
                                                                      transform, params.truncation,
                                                                      static_cast<float*>(call->outputs[0].data));
    }
    return launch_status(call, "launch logp with top_k or top_p");
  }
  if (backward) {
    const auto* grad_logp = static_cast<const float*>(call->inputs[2].data);
    auto* dlogits = static_cast<T*>(call->outputs[0].data);
    const auto error =
        launch_gradient<T>(logp_backward_held<T, Transform>, logp_backward<T, Transform>, params.rows, params.vocab,
                           stream, logits, ids, grad_logp, params.ignored, params.vocab, transform, dlogits);
    return cuda_status(call, error, "launch logp backward");
  }
  const auto error = launch_rows<T, true>(logp_forward<T, Transform>, params.rows, threads_for(params.vocab),
                                          params.vocab, stream, logits, ids, params.ignored, params.vocab, transform,
                                          static_cast<float*>(call->outputs[0].data));
  return cuda_status(call, error, "launch logp forward");
}

checkop_status launch(const checkop_call* call, bool backward) {
  LogpParams params;
  if (auto status = check_call(call, backward, params)) return status;
  if (params.rows == 0) return CHECKOP_OK;
  const auto* ids = static_cast<const int64_t*>(call->inputs[1].data);
  IdCheck id_check(call, ids, params.rows, params.vocab, "token_ids", call->workspace,
                   static_cast<cudaStream_t>(call->stream));
  if (auto status = id_check.begin({.except = params.ignored})) return status;
  return with_float_type(call->inputs[0].dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    if (auto status = params.transform.is_none() ? launch<T>(call, params, NoTransform{}, backward)
                                                 : launch<T>(call, params, params.transform, backward)) {
      return status;
    }
    return id_check.finish();
  });
}

checkop_status launch_forward(const checkop_call* call) { return launch(call, false); }
checkop_status launch_backward(const checkop_call* call) { return launch(call, true); }

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "logp", "forward", CHECKOP_CUDA, 80, 0, workspace_bytes, launch_forward},
    {sizeof(checkop_kernel), "cuda", "logp", "backward", CHECKOP_CUDA, 80, 0, workspace_bytes, launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
