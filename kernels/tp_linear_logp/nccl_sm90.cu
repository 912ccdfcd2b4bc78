// SPDX-License-Identifier: Apache-2.0
// tp_linear_logp / nccl-sm90: the vocabulary divided among ranks with a Hopper GPU each. fp16 and bf16 are computed as
// in linear_logp / cuda-sm90, and exchanged as in tp_linear_logp / nccl.
//   forward   logp[row] = z[row,t] - lse(z[row,:]),  z = hidden * lm_head_weight^T + bias,  t = target_ids[row]
//   backward  dz[row,c] = g * ((c == t) - p[c]);  dhidden = the sum over all ranks of dz * lm_head_weight,
//             dlm_head_weight = dz^T * hidden, dbias[c] = sum_row dz[row,c] of the rank's own part
//   hidden, dhidden: [rows, hidden]   lm_head_weight, dlm_head_weight: [part of vocab, hidden]   bias, dbias: [part of
//   vocab], optional; all of one dtype, f32|f16|bf16, contiguous   target_ids: [rows] i64, global
//   logp, grad_logp: [rows] f32
//   If target_ids[row] = ignore_index: logp is 0 and the row adds nothing to any gradient, whatever hidden[row] holds.
//   dlm_head_weight_carry, dbias_carry: as for linear_logp / cuda-sm90, of the rank's own part
//   fp32 as in the candidate nccl. No gradients in fp16.
//   Limits: sm_90 only; 64 ranks, 64 canonical segments; |z| < 2^30, for gradients < 2^23; part of vocab < 2^30.
//   Expected error: as for linear_logp / cuda-sm90, plus one addition per part; dhidden is rounded once, after the sum
//   over all parts.
#include "linear_logp/sm90.cuh"
#include "tp_linear_logp/nccl.cuh"

namespace checkop::kernels::tp_linear_logp {
namespace {

namespace hopper = linear_logp::hopper;

template <typename T>
class Hopper {
 public:
  using Sum = sm90::PowerSum;

  static size_t workspace(const linear_logp::LinearLogpShape& shape, bool backward, int64_t parts) {
    return hopper::workspace_layout(shape, backward, parts, /*keeps_sums=*/false).bytes;
  }
  static int64_t ld(int64_t hidden) { return hidden; }

  Hopper(const checkop_call& c, const linear_logp::LinearLogpShape& shape, bool backward, int64_t parts,
         int64_t ignored)
      : call_(c),
        all_(hopper::params_of<T>(&c, shape, hopper::workspace_layout(shape, backward, parts, /*keeps_sums=*/false),
                                  ignored)),
        backward_(backward) {
    all_.first_id = c.shard_begin;
    if (backward && std::is_same_v<T, __half>)
      throw native::Refusal(CHECKOP_UNSUPPORTED,
                            "no gradients in fp16: gradients of logits underflow; use bf16 or fp32");
  }

  void keep_hidden() { hopper::keep_hidden(all_); }

  void reduce(int64_t index, int64_t first, int64_t columns, ranks::SegmentStats* stats) {
    const auto* target_logit = all_.template in_workspace<float>(all_.layout.target_logit);
    const int64_t begin = all_.first_id + first;
    const auto finish_at = [&](int64_t row) {
      return ranks::WriteSegmentStats{target_logit, all_.target_ids + row, begin, begin + columns, stats + row};
    };
    const auto part = all_.part(index, first, columns);
    const auto launch = [&](const hopper::Kept& kept, T* scratch) {
      ranks::require(hopper::reduce_logits(part, kept, scratch, finish_at, variant_), "launch the logits");
    };
    if (!backward_) {
      launch({}, nullptr);
      return;
    }
    linear_logp::with_weight_gradients<T>(call_, [&](const auto& all) {
      const auto to = all.from(first, all_.shape.hidden);
      launch(hopper::kept_in(part, to), hopper::scratch_in<T>(to));
    });
  }

  sm90::WriteRowGradients write_rows(const float* grad_logp) const {
    return {grad_logp,     all_.target_ids,  all_.ignored,
            all_.first_id, all_.shape.vocab, all_.template in_workspace<sm90::RowGradient>(all_.layout.row_gradients)};
  }

  void gradients(int64_t index, int64_t first, int64_t columns, const float*, float* share) const {
    if constexpr (!std::is_same_v<T, __half>) {
      const auto part = all_.part(index, first, columns);
      cudaError_t error = cudaSuccess;
      linear_logp::with_weight_gradients<T>(call_, [&](const auto& all) {
        const auto to = all.from(first, all_.shape.hidden);
        error = hopper::launch_gradients(part, hopper::kept_in(part, to), first, share, static_cast<T*>(nullptr), to);
      });
      ranks::require(error, "launch the gradients");
    }
  }

  const char* variant() const { return variant_; }

 private:
  const checkop_call& call_;
  hopper::HopperParams<T> all_;  ///< of all this rank's columns
  bool backward_;
  const char* variant_ = "";
};

/// Calls f(TypeTag<engine>{}, TypeTag<dtype>{}).
template <typename F>
void with_engine(const checkop_call& c, F&& f) {
  const int32_t dtype = c.n_inputs > 0 ? c.inputs[0].dtype : CHECKOP_F32;
  with_float_type(dtype, [&]<typename Tag>(Tag tag) {
    using T = typename Tag::type;
    using Engine = std::conditional_t<std::is_same_v<T, float>, Portable<T>, Hopper<T>>;
    f(TypeTag<Engine>{}, tag);
    return CHECKOP_OK;
  });
}

template <bool backward>
size_t workspace(const checkop_call* call) {
  size_t bytes = 0;
  with_engine(*call, [&]<typename Engine>(TypeTag<Engine>, auto) { bytes = workspace_bytes<Engine>(call, backward); });
  return bytes;
}

template <bool backward>
checkop_status launch(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    with_engine(c, [&]<typename Engine, typename T>(TypeTag<Engine>, TypeTag<T>) { run<Engine, T>(c, backward); });
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "nccl-sm90", "tp_linear_logp", "forward", CHECKOP_CUDA, 90, 90, workspace<false>,
     launch<false>},
    {sizeof(checkop_kernel), "nccl-sm90", "tp_linear_logp", "backward", CHECKOP_CUDA, 90, 90, workspace<true>,
     launch<true>, "dz_in_16_bit"},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels::tp_linear_logp

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::tp_linear_logp::kPlugin; }
