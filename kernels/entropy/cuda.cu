// SPDX-License-Identifier: Apache-2.0
// entropy / cuda: one block per row, both sums in fp32 in one pass over the row, portable CUDA.
//   z = softcap tanhf(logits / softcap) / temperature, or logits / temperature if softcap is 0
//   b_c = max z[row,:] - z[row,c],  s = sum_c exp(-b_c),  M = sum_c exp(-b_c) b_c / s
//   forward   entropy[row] = log(s) + M
//   backward  dlogits[row,c] = g[row] exp(-b_c) / s (b_c - M) (1 - tanh^2) / temperature,  g = grad_entropy
//   logits, dlogits: [rows, vocab] f32|f16|bf16, contiguous     mask: [rows] u8 or none
//   entropy, grad_entropy: [rows] f32
//   Where the mask is 0: entropy and gradient are 0, and the row of logits is not read. A logit of -inf adds nothing.
//   Limits: rows < 2^31, vocab 1 to 2^30.   No workspace.
//   Expected error: chains of about vocab/1024 + 20 fp32 additions, expf, tanhf and logf within 2 ulp, one output
//   rounding. A row's bits depend only on its own values: see cuda/softmax.cuh.
#include "cuda/logit_transform.cuh"
#include "cuda/softmax.cuh"

namespace checkop::kernels {
namespace {

/// The maximum of the transformed logits that a thread has read, and its sums relative to exp_shift(max).
struct EntropyPartial {
  float max = -INFINITY, sum = 0.0f, weighted = 0.0f;

  /// Rescales the sums to `shift`, which is at least the shift that they have.
  __device__ void move_to(float shift) {
    if (sum == 0.0f) return;
    const float up = shift - max, factor = expf(-up);
    weighted = factor * fmaf(up, sum, weighted);
    sum *= factor;
  }

  template <bool has_cap, typename T>
  __device__ void add(const LogitTransform& transform, const Group<T> (&groups)[kGroups], int first, int step,
                      int vocab) {
    constexpr int kColumns = kGroupColumns<T>;
    float z[kGroups][kColumns], new_max = max;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      groups[g].unpack(z[g]);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        // A soft cap would turn the -inf beyond the row's end into a number.
        const bool inside = !has_cap || first + g * step + i < vocab;
        z[g][i] = inside ? transform.apply<has_cap>(z[g][i]) : -INFINITY;
        new_max = fmaxf(new_max, z[g][i]);
      }
    }
    const float shift = exp_shift(new_max);
    if (new_max > max) {  // rare after the first groups
      move_to(shift);
      max = new_max;
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      float group_sum = 0.0f, group_weighted = 0.0f;  // two levels: the chain is one group, then the number of groups
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const float below = shift - z[g][i], term = expf(-below);
        group_sum += term;
        group_weighted += term == 0.0f ? 0.0f : term * below;  // below may be infinite
      }
      sum += group_sum, weighted += group_weighted;
    }
  }
};

struct EntropyRow {
  float max, sum, mean;
};

/// Maximum, sum of exponentials and M of a row, in every thread. All threads of the block must call.
template <bool has_cap, typename T, bool skewed>
__device__ EntropyRow reduce_entropy(StepRing& ring, const RowSteps<T, skewed>& row, const LogitTransform& transform) {
  __shared__ float max_per_warp[kWarp], sum_per_warp[kWarp], weighted_per_warp[kWarp];
  constexpr int kColumns = kGroupColumns<T>;
  EntropyPartial mine;
  for_each_step(ring, row, [&](const Group<T>(&groups)[kGroups], int step) {
    mine.add<has_cap, T>(transform, groups, row.at(step, 0) * kColumns, static_cast<int>(blockDim.x) * kColumns,
                         row.vocab());
  });
  const float max = block_max(mine.max, max_per_warp);
  mine.move_to(exp_shift(max));
  const float sum = block_sum(mine.sum, sum_per_warp);
  return {max, sum, block_sum(mine.weighted, weighted_per_warp) / sum};
}

/// The entropy of one row per block. Error: see the head of the file.
template <typename T, bool has_cap>
__global__ __launch_bounds__(kMaxThreads, kBlocksPerSM) void entropy_forward(const T* __restrict__ logits,
                                                                             const uint8_t* __restrict__ mask,
                                                                             int64_t vocab, LogitTransform transform,
                                                                             float* __restrict__ entropy, int slots) {
  const int64_t row = blockIdx.x;
  if (mask != nullptr && mask[row] == 0) {  // the same for the whole block
    if (threadIdx.x == 0) entropy[row] = 0.0f;
    return;
  }
  StepRing ring(slots);
  const auto reduce = [&](const auto& steps) { return reduce_entropy<has_cap>(ring, steps, transform); };
  const EntropyRow r = with_steps(vocab, reduce, logits + row * vocab);
  if (threadIdx.x == 0) entropy[row] = logf(r.sum) + r.mean;
}

/// dlogits of one row per block.
template <typename T, bool has_cap>
__global__ __launch_bounds__(kMaxBackwardThreads) void entropy_backward(const T* __restrict__ logits,
                                                                        const uint8_t* __restrict__ mask,
                                                                        const float* __restrict__ grad_entropy,
                                                                        int64_t vocab, LogitTransform transform,
                                                                        T* __restrict__ dlogits, int slots) {
  const int64_t row = blockIdx.x;
  T* __restrict__ dx = dlogits + row * vocab;
  if (mask != nullptr && mask[row] == 0) return write_zeros(dx, vocab);  // the whole block
  StepRing ring(slots);
  const auto write = [&](const auto& x) {
    constexpr int kColumns = kGroupColumns<T>;
    const EntropyRow r = reduce_entropy<has_cap>(ring, x, transform);
    const float shift = exp_shift(r.max), scale = grad_entropy[row] / r.sum;
    const bool in_vectors = skew_of(dx) == x.skew();
    for_each_step_again(ring, x, [&](const Group<T>(&vectors)[kGroups], int step) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const int first = x.at(step, g) * kColumns - x.skew();
        float value[kColumns];
        vectors[g].unpack(value);
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          const float below = shift - transform.apply<has_cap>(value[i]), p = expf(-below);
          value[i] = p == 0.0f ? 0.0f : scale * p * (below - r.mean) * transform.slope<has_cap>(value[i]);
        }
        if (in_vectors && first >= 0 && first + kColumns <= vocab) {
          // A streaming store: dlogits is not read here, so L2 is left to the logits
          __stcs(reinterpret_cast<uint4*>(dx + first), Group<T>::packed(value).bits);
        } else {
#pragma unroll
          for (int i = 0; i < kColumns; ++i) {
            if (first + i >= 0 && first + i < vocab) dx[first + i] = from_float<T>(value[i]);
          }
        }
      }
    });
  };
  with_steps(vocab, write, logits + row * vocab);
}

struct EntropyParams {
  int64_t rows, vocab;
  LogitTransform transform;
};

checkop_status check_call(const checkop_call* call, bool backward, EntropyParams& params) {
  CallCheck check(call);
  if (check.counts(backward ? 3 : 2, 1).failed()) return check.status();
  const checkop_tensor &logits = call->inputs[0], &mask = call->inputs[1];
  if (check.rank_at_least(logits, "logits", 1).failed()) return check.status();
  params = {leading_count(logits), last_extent(logits), {}};
  if (auto status = read_transform(call, params.transform)) return status;
  const int32_t n_leading = logits.rank - 1;
  check.float_dtype(logits, "logits").contiguous(logits, "logits");
  const auto list = [&](const checkop_tensor& t, const char* name, int32_t dtype) {
    check.dtype(t, name, dtype).shape(t, name, logits, n_leading, {}).contiguous(t, name);
  };
  if (mask.data != nullptr) list(mask, "mask", CHECKOP_U8);
  if (backward) {
    const checkop_tensor& dlogits = call->outputs[0];
    list(call->inputs[2], "grad_entropy", CHECKOP_F32);
    check.dtype(dlogits, "dlogits", logits.dtype).shape(dlogits, "dlogits", logits, logits.rank, {});
    check.contiguous(dlogits, "dlogits");
  } else {
    list(call->outputs[0], "entropy", CHECKOP_F32);
  }
  if (check.failed()) return check.status();
  return check_rows(call, "logits", params.rows, params.vocab);
}

template <typename T, bool has_cap>
checkop_status launch(const checkop_call* call, const EntropyParams& params, bool backward) {
  auto* stream = static_cast<cudaStream_t>(call->stream);
  const auto* logits = static_cast<const T*>(call->inputs[0].data);
  const auto* mask = static_cast<const uint8_t*>(call->inputs[1].data);
  if (backward) {
    const auto error =
        launch_rows<T>(entropy_backward<T, has_cap>, params.rows, backward_threads_for(params.vocab), params.vocab,
                       stream, logits, mask, static_cast<const float*>(call->inputs[2].data), params.vocab,
                       params.transform, static_cast<T*>(call->outputs[0].data));
    return cuda_status(call, error, "launch entropy backward");
  }
  const auto error =
      launch_rows<T>(entropy_forward<T, has_cap>, params.rows, threads_for(params.vocab), params.vocab, stream, logits,
                     mask, params.vocab, params.transform, static_cast<float*>(call->outputs[0].data));
  return cuda_status(call, error, "launch entropy forward");
}

checkop_status launch(const checkop_call* call, bool backward) {
  EntropyParams params;
  if (auto status = check_call(call, backward, params)) return status;
  if (params.rows == 0) return CHECKOP_OK;
  return with_float_type(call->inputs[0].dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    return params.transform.cap == 0.0f ? launch<T, false>(call, params, backward)
                                        : launch<T, true>(call, params, backward);
  });
}

checkop_status launch_forward(const checkop_call* call) { return launch(call, false); }
checkop_status launch_backward(const checkop_call* call) { return launch(call, true); }

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "entropy", "forward", CHECKOP_CUDA, 80, 0, nullptr, launch_forward},
    {sizeof(checkop_kernel), "cuda", "entropy", "backward", CHECKOP_CUDA, 80, 0, nullptr, launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
