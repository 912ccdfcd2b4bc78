// SPDX-License-Identifier: Apache-2.0
// paged_attention / cuda-sm90: Hopper's wgmma for fp16 and bf16 with head_dim up to 128; forward only.
//   o[i] = sum_j p[i,j] v[j],  p = softmax over the keys of query i's sequence that `causal` keeps of scale q[i] k[j]
//   inputs: q, k_cache, v_cache, cu_seqlens_q, block_table, seq_lens, sinks     outputs: o, lse
//   q, o: [tokens_q, q_heads, head_dim]   k_cache, v_cache: [pages, page_size, kv_heads, head_dim]   f32|f16|bf16,
//   contiguous     cu_seqlens_q: [seqs + 1] i32, from 0 on, not decreasing, at most the tokens
//   block_table: [seqs, max_pages] i32   seq_lens: [seqs] i32, at most max_pages * page_size; all read on the device
//   lse: [tokens_q, q_heads] f32, may be absent
//   causal keeps key j <= i + (keys - queries) of the sequence. A row without keys, or behind the last sequence, is 0,
//   in lse -inf. Table entries behind the pages with keys are not read; what lies where a sequence has no key does not
//   reach it; but NaN and infinities in the values of keys that `causal` hides from a row reach it if a row of its
//   tile sees a key of their block of 128.
//   A head_dim below 64 takes the time of 64, and one between 64 and 128 that of 128.
//   Limits: sm_90 only; no window_left, window_right, softcap or sinks. fp32, a head_dim above 128 or not a multiple of
//   8, a v_dim that is not head_dim, and a scale that is not positive are computed as in the candidate cuda, with its
//   limits. Otherwise 16-bit arrays that do not begin at a 16-byte boundary are CHECKOP_UNSUPPORTED.
//   Slower: pages whose size is not a multiple of 8, because threads load them, not TMA; pages of 8 keys, which need
//   many small loads; fewer sequences times key heads than SMs, because keys are not divided among blocks.
//   Workspace: 256 bytes, and 32 for each of tokens_q / 4 + seqs + 1 tiles.
//   Expected error: that of attention's cuda-sm90 of one sequence, p rounded to 16 bits: recipe p_in_16_bit.
// A query's bits are those that attention's cuda-sm90 gives it over its keys: blocks of 128 keys are counted from the
// sequence's first one; see attention/sm90.cuh. They depend neither on the size or the order of the pages, nor on the
// queries of the same launch, nor on the number of SMs.
#include "attention/sm90_limits.cuh"
#include "attention/sm90_packed.cuh"
#include "paged_attention/portable.cuh"

namespace checkop::kernels {
namespace {

namespace hopper = attention::hopper;
using hopper::Source;
using namespace paged_attention;  // NOLINT: the checks of this operator

/// Few queries take one warpgroup and as many blocks of keys in flight as fit, since loading the keys takes nearly all
/// the time; many take the configuration of attention.
template <int head_dim, typename T>
cudaError_t launch(const hopper::PackedCall<T>& call) {
  constexpr int kFewRows = 64, kStages = head_dim == 128 ? 3 : 6;
  if (call.page_size % 8 != 0) {
    return hopper::launch_packed<hopper::AttentionConfig<head_dim, 1, kStages, Source::any_pages>>(call);
  }
  if (hopper::mean_queries(call.sequences) * call.shape.group() <= kFewRows) {
    return hopper::launch_packed<hopper::AttentionConfig<head_dim, 1, kStages, Source::pages>>(call);
  }
  return hopper::launch_packed<hopper::ManyQueries<head_dim, Source::pages>>(call);
}

checkop_status launch_forward(const checkop_call* call) {
  AttentionParams shape;
  if (auto status = check_paged(call, shape)) return status;
  if (auto status = hopper::decline_options(call, shape, call->inputs[kOfSinks])) return status;
  const auto portable = [&] { return launch_portable(call, shape); };
  const auto run = [&](auto tag, auto head_dim) {
    const checkop_tensor *in = call->inputs, &cache = in[1], &table = in[4];
    const int64_t page_size = cache.shape[1], max_pages = table.shape[1];
    auto packed = hopper::packed_call<typename decltype(tag)::type>(call, shape, cache.shape[0] * page_size,
                                                                    max_pages * page_size);
    packed.table = static_cast<const int32_t*>(table.data), packed.max_pages = max_pages, packed.page_size = page_size;
    packed.sequences.lengths = static_cast<const int32_t*>(in[5].data);
    if (!hopper::has_packed(packed)) return portable();
    CallCheck check(call);
    if (check.workspace(hopper::packed_workspace(call)).failed()) return check.status();
    const auto error = launch<decltype(head_dim)::value>(packed);
    if (auto status = cuda_status(call, error, "launch paged_attention forward")) return status;
    return say(call, CHECKOP_OK, "wgmma, %s", page_size % 8 == 0 ? "pages by TMA" : "pages by threads");
  };
  return hopper::with_shape(call, shape, run, portable);
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda-sm90", "paged_attention", "forward", CHECKOP_CUDA, 90, 90, hopper::packed_workspace,
     launch_forward, "p_in_16_bit"},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 1, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
