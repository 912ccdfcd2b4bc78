// SPDX-License-Identifier: Apache-2.0
// Calls that the shipped candidates must refuse before any work: each tensor of each pass in turn gets a wrong rank,
// extent, dtype or strides. A refusal has a message and leaves all outputs unchanged. Then the message of every refusal
// of the native candidates, whole.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "case/inputs.hpp"
#include "device/host_comm.hpp"
#include "device/plugin.hpp"
#include "run/runner.hpp"
#include "support/built.hpp"
#include "support/gold_helper.hpp"

namespace checkop::refusal_test {
namespace {

constexpr unsigned char kUntouched = 0xa5;

/// A call like the runner's, on its own memory, for tests to corrupt.
struct SpoiltCall {
  explicit SpoiltCall(const Case& c) : case_of_call(c), data(make_inputs(c, 1)) {
    for (Tensor& output : make_outputs(c)) data.push_back(std::move(output));
    for (size_t i = 0; i < data.size(); ++i) {
      shapes.push_back(data[i].shape), strides.emplace_back(data[i].shape.size(), 1);
      for (size_t d = shapes[i].size(); d-- > 1;) strides[i][d - 1] = strides[i][d] * shapes[i][d];
      if (i >= c.pass->inputs.size()) std::memset(data[i].bytes.data(), kUntouched, data[i].bytes.size());
    }
    for (size_t i = 0; i < c.attrs.size(); ++i) attrs.push_back({c.op->attrs[i].name.data(), c.attrs[i]});
    call.struct_size = sizeof(call);
    call.n_inputs = static_cast<int32_t>(c.pass->inputs.size());
    call.n_outputs = static_cast<int32_t>(c.pass->outputs.size());
    call.n_attrs = static_cast<int32_t>(attrs.size());
    call.world_size = 1, call.message = message, call.message_bytes = sizeof(message);
    for (size_t i = 0; i < data.size(); ++i) {
      tensors.push_back({data[i].bytes.data(), static_cast<int32_t>(data[i].dtype),
                         static_cast<int32_t>(shapes[i].size()), shapes[i].data(), strides[i].data()});
    }
  }

  const TensorSpec& spec(size_t i) const {
    const Pass& pass = *case_of_call.pass;
    return i < pass.inputs.size() ? pass.inputs[i] : pass.outputs[i - pass.inputs.size()].tensor;
  }

  /// Launches and expects a refusal. The workspace has the size that the candidate asks for.
  void expect_refusal(const Candidate& candidate, const std::string& what) {
    call.inputs = tensors.data(), call.outputs = tensors.data() + call_inputs(), call.attrs = attrs.data();
    std::vector<std::byte> workspace(
        candidate.kernel->workspace_bytes == nullptr ? 0 : candidate.kernel->workspace_bytes(&call));
    call.workspace = workspace.empty() ? nullptr : workspace.data(), call.workspace_bytes = workspace.size();
    const std::string where =
        fmt::format("{}/{} {}: {}", case_name(case_of_call), candidate.pass, candidate.name, what);
    const int status = candidate.kernel->launch(&call);
    EXPECT_TRUE(status == CHECKOP_UNSUPPORTED || status == CHECKOP_FAILED) << where << " was accepted";
    EXPECT_NE(message[0], '\0') << where << " was refused without a word";
    for (size_t i = call_inputs(); i < data.size(); ++i) {
      for (size_t b = 0; b < data[i].bytes.size(); ++b) {
        ASSERT_EQ(static_cast<unsigned char>(data[i].bytes.data()[b]), kUntouched)
            << where << " wrote " << data[i].name;
      }
    }
  }
  size_t call_inputs() const { return case_of_call.pass->inputs.size(); }

  size_t index_of(std::string_view name) const {
    for (size_t i = 0; i < data.size(); ++i)
      if (spec(i).name == name) return i;
    throw std::logic_error("no tensor " + std::string(name));
  }
  /// Gives a tensor another shape, contiguous; its memory stays.
  void set_shape(std::string_view name, const Shape& shape) {
    const size_t i = index_of(name);
    shapes[i] = shape, strides[i].assign(shape.size(), 1);
    for (size_t d = shape.size(); d-- > 1;) strides[i][d - 1] = strides[i][d] * shape[d];
    tensors[i].rank = static_cast<int32_t>(shape.size());
    tensors[i].shape = shapes[i].data(), tensors[i].strides = strides[i].data();
  }
  template <class... Extents>
  void reshape(std::string_view name, Extents... extents) {
    set_shape(name, {static_cast<int64_t>(extents)...});
  }
  void remove(std::string_view name) {
    set_shape(name, {});
    tensors[index_of(name)].data = nullptr;
  }
  checkop_tensor& tensor(std::string_view name) { return tensors[index_of(name)]; }
  template <class T>
  T* elements(std::string_view name) {
    return static_cast<T*>(tensor(name).data);
  }
  void set_attribute(std::string_view name, double value) {
    for (checkop_attr& attr : attrs)
      if (attr.name == name) return void(attr.value = value);
    throw std::logic_error("no attribute " + std::string(name));
  }

  Case case_of_call;
  std::vector<Tensor> data;  ///< inputs, then outputs
  std::vector<Shape> shapes, strides;
  std::vector<checkop_attr> attrs;
  std::vector<checkop_tensor> tensors;
  char message[512] = {};
  checkop_call call{};
};

std::vector<Candidate> shipped_candidates(const Case& c) {
  std::vector<Candidate> own;
  for (const auto& file : std::filesystem::directory_iterator(fmt::format("{}/kernels/{}", kBuildFolder, c.op->name))) {
    if (file.path().extension() != ".so") continue;
    for (const Candidate& candidate : load_plugin(file.path().string())) {
      if (candidate.pass == c.pass->name) own.push_back(candidate);
    }
  }
  return own;
}

/// Every pass with all of its optional tensors, and extents of at least 3.
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Operator* op : operators()) {
    for (const Pass& pass : op->passes) {
      std::set<std::string, std::less<>> optionals;
      for (const std::string_view name : optionals_of(pass)) optionals.emplace(name);
      all.push_back(fitted(gold_case(op->name, pass.name, DType::f32, test_dims(*op, 4), optionals)));
    }
  }
  return all;
}

/// Corrupts every tensor of every pass by spoil(call, index), and expects a refusal each time it returns true.
template <class Spoil>
void expect_refusals(const std::string& what, Spoil spoil) {
  int refusals = 0;
  for (const Case& c : cases()) {
    const std::vector<Candidate> candidates = shipped_candidates(c);
    ASSERT_FALSE(candidates.empty()) << c.op->name;
    for (const Candidate& candidate : candidates) {
      for (size_t i = 0; i < c.pass->inputs.size() + c.pass->outputs.size(); ++i) {
        SpoiltCall call(c);
        if (!spoil(call, i)) continue;
        call.expect_refusal(candidate, fmt::format("{} of {}", what, call.spec(i).name));
        ++refusals;
      }
    }
  }
  EXPECT_GT(refusals, 50);
}

TEST(Refusal, WrongRank) {
  expect_refusals("the rank", [](SpoiltCall& call, size_t i) {
    call.shapes[i].push_back(1), call.strides[i].push_back(1);
    call.shapes[i].push_back(2), call.strides[i].assign(call.shapes[i].size(), 1);
    for (size_t d = call.shapes[i].size(); d-- > 1;) call.strides[i][d - 1] = call.strides[i][d] * call.shapes[i][d];
    call.tensors[i].rank += 2;
    call.tensors[i].shape = call.shapes[i].data(), call.tensors[i].strides = call.strides[i].data();
    return true;
  });
  expect_refusals("the rank 0", [](SpoiltCall& call, size_t i) {
    if (call.tensors[i].rank == 0) return false;
    call.tensors[i].rank = 0;
    return true;
  });
}

TEST(Refusal, WrongExtent) {
  for (const bool last : {false, true}) {
    expect_refusals(last ? "the last extent" : "the first extent", [last](SpoiltCall& call, size_t i) {
      const auto names = split_dims(call.spec(i).dims);
      if (names.empty()) return false;
      const std::string_view name = last ? names.back() : names.front();
      // An extent that occurs in only one tensor may have any value.
      int owners = 0;
      for (size_t other = 0; other < call.data.size(); ++other) {
        const auto of_other = split_dims(call.spec(other).dims);
        owners += static_cast<int>(std::find(of_other.begin(), of_other.end(), name) != of_other.end());
      }
      if (owners < 2) return false;
      Shape& shape = call.shapes[i];
      --(last ? shape.back() : shape.front());
      for (size_t d = shape.size(); d-- > 1;) call.strides[i][d - 1] = call.strides[i][d] * shape[d];
      return true;
    });
  }
}

TEST(Refusal, WrongDtype) {
  expect_refusals("the dtype", [](SpoiltCall& call, size_t i) {
    const DType dtype = call.data[i].dtype;
    int of_the_case = 0;  // a tensor that alone has the case's dtype may have any
    for (size_t other = 0; other < call.data.size(); ++other) of_the_case += call.spec(other).dtype ? 0 : 1;
    if (!call.spec(i).dtype && of_the_case < 2) return false;
    call.tensors[i].dtype = info(dtype).is_float ? CHECKOP_F16 : dtype == DType::i32 ? CHECKOP_I64 : CHECKOP_I32;
    return true;
  });
  expect_refusals("fp64", [](SpoiltCall& call, size_t i) {
    if (!info(call.data[i].dtype).is_float) return false;
    call.tensors[i].dtype = CHECKOP_F64;
    return true;
  });
}

TEST(Refusal, Strides) {
  expect_refusals("the strides", [](SpoiltCall& call, size_t i) {
    if (call.data[i].count() == 1) return false;  // the only element is at the same place with any strides
    for (int64_t& stride : call.strides[i]) stride *= 2;
    return true;
  });
}

TEST(Refusal, WrongCounts) {
  for (const Case& c : cases()) {
    for (const Candidate& candidate : shipped_candidates(c)) {
      for (int32_t checkop_call::*count : {&checkop_call::n_inputs, &checkop_call::n_outputs}) {
        SpoiltCall call(c);
        --(call.call.*count);
        call.expect_refusal(candidate, "a tensor less");
      }
      if (c.attrs.empty()) continue;
      SpoiltCall call(c);
      call.call.n_attrs = 0;
      call.expect_refusal(candidate, "no attributes");
    }
  }
}

// --- messages of the native candidates

struct Message {
  std::string_view op, pass;
  void (*spoil)(SpoiltCall&);
  std::string_view text;
};

constexpr std::string_view kForward = "forward", kBackward = "backward";

void expect_messages(std::span<const Message> messages) {
  for (const Message& message : messages) {
    const Case all = gold_case(message.op, message.pass, DType::f32, test_dims(*find_operator(message.op), 4));
    const std::vector<std::string_view> names = optionals_of(*all.pass);
    SpoiltCall call(fitted(gold_case(message.op, message.pass, DType::f32, all.dims, {names.begin(), names.end()})));
    message.spoil(call);
    for (const Candidate& candidate : shipped_candidates(call.case_of_call)) {
      if (candidate.name != "native") continue;
      call.expect_refusal(candidate, std::string(message.text));
      EXPECT_EQ(std::string_view(call.message), message.text) << message.op << '/' << message.pass;
    }
  }
}

TEST(Refusal, MessagesOfEveryOperator) {
  expect_messages(std::vector<Message>{
      {"silu", kForward, [](SpoiltCall& c) { c.call.n_inputs = 2; }, "got 2 inputs and 1 outputs, expected 1 and 1"},
      {"silu", kForward, [](SpoiltCall& c) { c.tensor("x").dtype = CHECKOP_F64; },
       "fp64 is not supported: sums are in fp32, for fp32, bf16 and fp16"},
      {"silu", kForward, [](SpoiltCall& c) { c.tensor("y").dtype = CHECKOP_F16; }, "y: dtype fp16, expected fp32"},
      {"silu", kForward, [](SpoiltCall& c) { c.reshape("x"); }, "x: rank 0, expected at least 1"},
      {"silu", kForward, [](SpoiltCall& c) { c.strides[1][0] *= 2; },
       "y: stride of dimension 0 is 60, expected 30 (contiguous)"},
      {"silu", kForward, [](SpoiltCall& c) { c.tensor("y").data = nullptr; }, "y: no data"},
      {"silu", kForward, [](SpoiltCall& c) { c.reshape("y", 1, 1); }, "y: hidden is 1, expected 6"},
      {"rms_norm", kForward, [](SpoiltCall& c) { c.call.n_attrs = 0; }, "expected 1 attribute: eps"},
      {"gae", kForward, [](SpoiltCall& c) { c.call.n_attrs = 0; }, "attribute 'gamma' is missing"},
      {"grpo_loss", kBackward, [](SpoiltCall& c) { c.tensor("grad_loss").dtype = CHECKOP_F64; },
       "grad_loss: expected one fp32 element"},
      {"logp", kForward, [](SpoiltCall& c) { c.elements<int64_t>("token_ids")[1] = -3; },
       "token_ids[1] = -3 is outside [0, 6)"},
  });
}

TEST(Refusal, MessagesOfNormsAndRotations) {
  expect_messages(std::vector<Message>{
      {"gated_rms_norm", kForward, [](SpoiltCall& c) { c.set_attribute("group_size", 5); },
       "group_size 5 does not divide hidden"},
      {"rope", kForward, [](SpoiltCall& c) { c.reshape("x", 2, 6); }, "x: expected rank 4"},
      {"rope", kForward, [](SpoiltCall& c) { c.reshape("x", 4, 1, 6, 5), c.reshape("y", 4, 1, 6, 5); },
       "x: head_dim is odd"},
      {"rope", kForward, [](SpoiltCall& c) { c.set_attribute("rotary_dim", 3); },
       "rotary_dim 3: expected an even number up to 6"},
      {"rope", kForward, [](SpoiltCall& c) { c.set_attribute("interleaved", 2); },
       "interleaved 2.000000: choices up to 1"},
      {"qk_norm_rope", kForward, [](SpoiltCall& c) { c.elements<int64_t>("positions")[2] = -1; },
       "positions[2] = -1 is below 0"},
      {"qk_norm_rope", kForward, [](SpoiltCall& c) { c.reshape("q", 4, 6); }, "q: expected rank 3"},
      {"qk_norm_rope", kForward, [](SpoiltCall& c) { c.reshape("q_out", 4, 6); }, "q_out: expected the heads of x"},
  });
}

TEST(Refusal, MessagesOfTokensAndGroups) {
  expect_messages(std::vector<Message>{
      {"linear_logp", kBackward, [](SpoiltCall& c) { c.remove("dbias_carry"); },
       "dlm_head_weight_carry and dbias_carry: give both or neither with a bias, no dbias_carry without one"},
      {"ratio_kl", kForward,
       [](SpoiltCall& c) { c.elements<uint8_t>("attention_mask")[3] = 1, c.elements<int64_t>("action_ids")[3] = -5; },
       "action_ids[3] = -5 is outside [0, 6) and not masked"},
      {"linear_policy_loss", kForward,
       [](SpoiltCall& c) { c.elements<uint8_t>("mask")[3] = 1, c.elements<int64_t>("target_ids")[3] = -5; },
       "target_ids[3] = -5 is outside [0, 7) and not masked"},
      {"group_norm", kForward,
       [](SpoiltCall& c) { c.remove("group_boundaries"), c.set_attribute("samples_per_prompt", 1); },
       "samples_per_prompt is 1, expected a divisor of the batch of 4 that is at least 2"},
      {"group_norm", kForward, [](SpoiltCall& c) { c.elements<int64_t>("group_boundaries")[0] = 1; },
       "group_boundaries must start with 0, increase, and end with the batch of 4"},
      {"group_norm", kForward, [](SpoiltCall& c) { c.reshape("group_boundaries", c.shapes[1][0], 2); },
       "group_boundaries: rank 2, expected 1"},
      {"grpo_loss", kForward, [](SpoiltCall& c) { c.reshape("rewards", 1000); },
       "rewards: 1000 do not divide 30 tokens"},
      {"pack", kForward, [](SpoiltCall& c) { c.reshape("mask", 20); }, "expected rank 2 for mask and rank 3 for x"},
      {"pack", kForward, [](SpoiltCall& c) { c.reshape("mask", 1, 5); }, "mask and x: the batches differ"},
  });
}

TEST(Refusal, MessagesOfExpertsAndTheirRows) {
  expect_messages(std::vector<Message>{
      {"moe_route", kForward, [](SpoiltCall& c) { c.set_attribute("n_group", 0); },
       "n_group, topk_group, group_top and topk do not fit the number of experts"},
      {"moe_route", kBackward, [](SpoiltCall& c) { c.elements<int32_t>("ids")[1] = -1; },
       "ids: an element is no expert"},
      {"moe_permute", kForward, [](SpoiltCall& c) { c.set_attribute("align", 0); }, "align is below 1"},
      {"moe_permute", kForward, [](SpoiltCall& c) { c.set_attribute("align", 1000); }, "x_perm: 6000 rows are needed"},
      {"moe_permute", kForward, [](SpoiltCall& c) { c.elements<int32_t>("ids")[1] = -2; },
       "ids[1] = -2 is neither in [0, 9) nor -1"},
      {"moe_permute", kForward, [](SpoiltCall& c) { c.reshape("src", 264, 1); }, "src: rank 2, expected 1"},
      {"grouped_gemm", kForward, [](SpoiltCall& c) { c.elements<int32_t>("offsets")[1] = 1000; },
       "offsets decrease or leave the rows"},
      {"grouped_gemm", kForward, [](SpoiltCall& c) { std::fill_n(c.elements<int32_t>("offsets"), c.shapes[2][0], 1); },
       "offsets do not start with 0"},
      {"grouped_gemm", kForward, [](SpoiltCall& c) { c.reshape("b", 4, 6); }, "b: expected rank 3"},
      {"masked_grouped_gemm", kForward, [](SpoiltCall& c) { c.elements<int32_t>("counts")[1] = 1000; },
       "counts[1] = 1000 is outside [0, 5]"},
      {"masked_grouped_gemm", kBackward, [](SpoiltCall& c) { c.elements<int32_t>("counts")[3] = -1; },
       "counts[3] = -1 is outside [0, 5]"},
      {"masked_grouped_gemm", kForward, [](SpoiltCall& c) { c.reshape("a", 20, 6); }, "a: expected rank 3"},
      {"fp8_block_wgrad", kForward, [](SpoiltCall& c) { c.elements<int32_t>("offsets")[1] = 1; },
       "offsets decrease, leave the rows or are no multiples of 128"},
      {"fp8_block_wgrad", kForward, [](SpoiltCall& c) { c.reshape("dw", 4, 6); }, "dw: expected rank 3"},
      {"grouped_gemm", kBackward, [](SpoiltCall& c) { c.reshape("db", 1, c.shapes[1][1], c.shapes[1][2]); },
       "db: the number of experts differs from that of b"},
  });
}

TEST(Refusal, MessagesOfAttention) {
  expect_messages(std::vector<Message>{
      {"attention", kForward, [](SpoiltCall& c) { c.call.n_attrs = 1; },
       "expected 2 attributes, causal and scale, or window_left, window_right and softcap too"},
      {"attention", kForward, [](SpoiltCall& c) { c.reshape("k", 4, 6); }, "q or keys: expected rank 4"},
      {"attention", kForward, [](SpoiltCall& c) { c.reshape("v", 4, 6); }, "values: expected rank 4"},
      {"kv_cache_attention", kForward, [](SpoiltCall& c) { c.reshape("k_new", 4, 6); }, "keys: expected rank 4"},
      {"attention", kForward, [](SpoiltCall& c) { c.reshape("v", 1, 1, 1, 1); },
       "values: batch, heads or sequence differ from those of q and k"},
      {"attention", kForward, [](SpoiltCall& c) { c.reshape("k", 1, 5, 1, 1); },
       "6 query heads: not a multiple of 5 key heads"},
      {"kv_cache_attention", kForward,
       [](SpoiltCall& c) {
         for (const char* name : {"k_new", "v_new"}) {
           Shape shorter = c.shapes[c.index_of(name)];
           --shorter[2];
           c.set_shape(name, shorter);
         }
       },
       "2 new keys for 3 queries: the causal mask needs one new key per query"},
      {"varlen_attention", kForward, [](SpoiltCall& c) { c.reshape("q", 4, 6); }, "q: expected rank 3"},
      {"varlen_attention", kForward, [](SpoiltCall& c) { c.reshape("v", 1, 1, 1); },
       "v: dtype or extents differ from those of its like"},
      {"varlen_attention", kForward, [](SpoiltCall& c) { c.reshape("k", 1, 1, 1), c.reshape("v", 1, 1, 1); },
       "k: dtype or head_dim differ from those of q"},
      {"varlen_attention", kForward, [](SpoiltCall& c) { c.elements<int32_t>("cu_seqlens_q")[0] = 1; },
       "cu_seqlens_q does not start with 0"},
      {"varlen_attention", kForward, [](SpoiltCall& c) { c.elements<int32_t>("cu_seqlens_k")[1] = -1; },
       "cu_seqlens_k[1] = -1 is below the one before it or beyond the 7 tokens"},
      {"varlen_attention", kForward, [](SpoiltCall& c) { c.reshape("cu_seqlens_k", 1); },
       "cu_seqlens_k: another number of sequences"},
      {"paged_attention", kForward, [](SpoiltCall& c) { c.reshape("v_cache", 1, 1, 1, 1); },
       "v_cache: dtype or extents differ from those of k_cache"},
      {"paged_attention", kForward, [](SpoiltCall& c) { c.reshape("block_table", 1); }, "block_table: expected rank 2"},
      {"paged_attention", kForward,
       [](SpoiltCall& c) { c.reshape("k_cache", 1, 1, 1, 1), c.reshape("v_cache", 1, 1, 1, 1); },
       "k_cache: dtype or head_dim differ from those of q"},
      {"attention_merge_state", kForward, [](SpoiltCall& c) { c.reshape("part_o", 4, 6); }, "part_o: expected rank 4"},
  });
}

TEST(Refusal, MessagesOfRanks) {
  expect_messages(std::vector<Message>{
      {"tp_logp", kForward, [](SpoiltCall& c) { c.call.rank = 1; }, "rank 1 of 1"},
      {"tp_logp", kForward, [](SpoiltCall& c) { c.call.world_size = 2; },
       "host communicator is missing or is not of this rank and world size"},
      {"tp_logp", kForward,
       [](SpoiltCall& c) { c.set_attribute("canonical_segments", -1), c.call.shard_total = c.call.shard_end = 6; },
       "canonical_segments is -1, expected 0 to 6"},
  });
}

TEST(Refusal, RankThatEndsWithinACanonicalSegmentIsRefusedByAll) {
  HostComm comm(2, std::chrono::seconds(10));
  const Case c = gold_case("tp_logp", "forward", DType::f32, test_dims(*find_operator("tp_logp"), 4));
  const std::vector<Candidate> candidates = shipped_candidates(c);
  const auto native = std::find_if(candidates.begin(), candidates.end(),
                                   [](const Candidate& candidate) { return candidate.name == "native"; });
  ASSERT_NE(native, candidates.end());
  const auto run = [&](int32_t rank, int64_t begin, int64_t end) {
    SpoiltCall call(c);
    call.call.rank = rank, call.call.world_size = 2, call.call.host_comm = comm.of(rank),
    call.call.comm = comm.of(rank);
    call.call.shard_begin = begin, call.call.shard_end = end, call.call.shard_total = 6;
    const Shape& logits = call.shapes[call.index_of("logits")];
    call.reshape("logits", logits[0], logits[1], end - begin);
    call.set_attribute("canonical_segments", 2);
    call.expect_refusal(*native, "an end within a canonical segment");
    comm.leave(rank);
    EXPECT_EQ(std::string_view(call.message), "rank 0 ends at 2, which is not the end of a canonical segment");
  };
  std::thread other([&] { run(1, 2, 6); });
  run(0, 0, 2);
  other.join();
}

}  // namespace
}  // namespace checkop::refusal_test
