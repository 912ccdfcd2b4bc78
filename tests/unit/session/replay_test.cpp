// SPDX-License-Identifier: Apache-2.0
// Saved cases with invalid tensors: --replay explains the error in one sentence and exits with 2.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "case/inputs.hpp"
#include "run/runner.hpp"
#include "support/gold_helper.hpp"
#include "support/process.hpp"
#include "tensor/safetensors.hpp"

namespace checkop::replay_test {
namespace {

/// The tensors of a saved case, for tests to corrupt and write.
struct Saved {
  Saved(const std::string& op, const std::string& pass, const Dims& dims,
        const std::set<std::string, std::less<>>& optionals = {})
      : c(gold_case(op, pass, DType::f32, dims, optionals)) {
    for (Tensor& tensor : make_inputs(c, 1)) add("input/", std::move(tensor));
    for (Tensor& tensor : make_outputs(c)) add("output/", std::move(tensor));
  }

  Tensor& at(const std::string& name) {
    for (Tensor& tensor : tensors) {
      if (tensor.name == name) return tensor;
    }
    throw std::logic_error("no tensor " + name);
  }
  /// Replaces a tensor by zeros of another shape or dtype.
  void replace(const std::string& name, DType dtype, const Shape& shape) { at(name) = Tensor(name, dtype, shape); }

  ProcessResult replay() const {
    // Tests run in parallel.
    const std::string path = fmt::format("{}replay_test_{}.safetensors", testing::TempDir(), getpid());
    {
      std::vector<SafetensorsEntry> entries;
      for (const Tensor& tensor : tensors) entries.push_back({tensor.name, tensor.dtype, tensor.shape});
      SafetensorsWriter file(path, entries,
                             {{"op", std::string(c.op->name)},
                              {"pass", std::string(c.pass->name)},
                              {"candidate", "test"},
                              {"attrs", "{}"},
                              {"seed", "1"}});
      for (const Tensor& tensor : tensors) file.write(tensor.name, 0, tensor.bytes.data(), tensor.bytes.size());
    }
    return run_program("--replay " + path);
  }

  Case c;
  std::vector<Tensor> tensors;

 private:
  void add(const std::string& group, Tensor tensor) {
    if (tensor.name.empty()) return;
    tensor.name = group + tensor.name;
    tensors.push_back(std::move(tensor));
  }
};

const Dims kLogp{{"batch", 1}, {"seq", 3}, {"vocab", 17}};
const Dims kLinear{{"batch", 1}, {"seq", 3}, {"hidden", 4}, {"vocab", 17}};
const Dims kMatmul{{"batch", 1}, {"seq", 3}, {"k_dim", 4}, {"n_dim", 5}};
const Dims kGrpo{{"batch", 4}, {"seq", 3}, {"vocab", 7}, {"group_bounds", 3}};
const Dims kRope{{"batch", 1}, {"heads", 2}, {"seq", 3}, {"head_dim", 4}};
const Dims kAttention{{"batch", 1}, {"q_heads", 4}, {"kv_heads", 2}, {"q_seq", 3}, {"kv_seq", 5}, {"head_dim", 4}};

TEST(Replay, SavedTensorsThatFitAreJudged) {
  // Outputs of zeros: the case is valid, the outputs are wrong.
  expect_exit(Saved("logp", "forward", kLogp).replay(), 1, "logp[0,0] = 0, gold -");
  expect_exit(Saved("grpo_loss", "forward", kGrpo, {"group_boundaries"}).replay(), 1, "[  FAILED  ]");
}

TEST(Replay, TheSizeOfValuesIsThatOfTheirTensor) {
  Dims wide = kAttention;
  wide["v_dim"] = 6;
  expect_exit(Saved("attention", "forward", wide).replay(), 1, "kv_seq=5 v_dim=6 seed=");
  expect_exit(Saved("attention", "forward", kAttention).replay(), 1, "kv_seq=5 seed=");
}

TEST(Replay, IdsOutsideTheVocabularyAreNamed) {
  for (const double id : {17.0, -1.0, -101.0}) {
    Saved logp("logp", "backward", kLogp), linear("linear_logp", "forward", kLinear, {"bias"});
    logp.at("input/token_ids").set(1, id);
    linear.at("input/target_ids").set(1, id);
    const std::string part = fmt::format("element 1 is {}, outside [0, 17)", id);
    expect_exit(logp.replay(), 2, "input 'token_ids': " + part);
    expect_exit(linear.replay(), 2, "input 'target_ids': " + part);
  }
  Saved embedding("embedding", "forward", {{"batch", 1}, {"seq", 3}, {"vocab", 7}, {"hidden", 2}});
  embedding.at("input/token_ids").set(2, -100);  // embedding has no ignore_index
  expect_exit(embedding.replay(), 2, "input 'token_ids': element 2 is -100, outside [0, 7)");
  Saved ratio("ratio_kl", "forward", kLogp);
  ratio.at("input/action_ids").set(0, 17);
  expect_exit(ratio.replay(), 2, "outside [0, 17), and not masked");
}

TEST(Replay, BoundariesThatDoNotCutTheBatchAreNamed) {
  for (const std::vector<double>& bounds : {std::vector<double>{1, 2, 4}, {0, 2, 3}, {0, 0, 4}, {0, 5, 4}}) {
    Saved grpo("grpo_loss", "forward", kGrpo, {"group_boundaries"});
    for (size_t i = 0; i < 3; ++i) grpo.at("input/group_boundaries").set(static_cast<int64_t>(i), bounds[i]);
    expect_exit(grpo.replay(), 2, "give boundaries that start with 0, increase, and end with the batch");
  }
}

TEST(Replay, PositionsBelowZeroAreNamed) {
  Saved rope("rope", "forward", kRope);
  rope.at("input/positions").set(2, -1);
  expect_exit(rope.replay(), 2, "input 'positions': element 2 is -1, below 0");
}

TEST(Replay, ShapesThatDoNotFitAreNamed) {
  Saved inner("matmul", "forward", kMatmul);
  inner.replace("input/b", DType::f32, {6, 5});
  expect_exit(inner.replay(), 2, "tensor 'input/b': has k_dim = 6, another tensor has 4");
  Saved rank("matmul", "forward", kMatmul);
  rank.replace("input/a", DType::f32, {3, 4});
  expect_exit(rank.replay(), 2, "tensor 'input/a': has shape [3, 4], expected [batch, seq, k_dim]");
  Saved bias("linear_logp", "forward", kLinear, {"bias"});
  bias.replace("input/bias", DType::f32, {16});
  expect_exit(bias.replay(), 2, "tensor 'input/bias': has vocab = 16, another tensor has 17");
  Saved targets("linear_logp", "forward", kLinear);
  targets.replace("input/target_ids", DType::i64, {1, 4});
  expect_exit(targets.replay(), 2, "tensor 'input/target_ids': has seq = 4, another tensor has 3");
  Saved mask("ratio_kl", "forward", kLogp);
  mask.replace("input/attention_mask", DType::u8, {1, 17});
  expect_exit(mask.replay(), 2, "tensor 'input/attention_mask': has seq = 17, another tensor has 3");
  Saved keys("attention", "forward", kAttention, {"key_padding_mask"});
  keys.replace("input/key_padding_mask", DType::u8, {1, 3});
  expect_exit(keys.replay(), 2, "tensor 'input/key_padding_mask': has kv_seq = 3, another tensor has 5");
  Saved output("logp", "backward", kLogp);
  output.replace("output/dlogits", DType::f32, {1, 3, 16});
  expect_exit(output.replay(), 2, "tensor 'output/dlogits': has vocab = 16, another tensor has 17");
}

TEST(Replay, SizesThatAnOperatorRefusesAreNamed) {
  Saved rope("rope", "forward", kRope);
  rope.replace("input/x", DType::f32, {1, 2, 3, 5}), rope.replace("output/y", DType::f32, {1, 2, 3, 5});
  expect_exit(rope.replay(), 2, "--head-dim: head_dim must be even, got 5");
  Saved heads("attention", "forward", kAttention);
  heads.replace("input/k", DType::f32, {1, 3, 5, 4}), heads.replace("input/v", DType::f32, {1, 3, 5, 4});
  expect_exit(heads.replay(), 2, "--q-heads: 4 query heads are not a multiple of 3 key heads");
}

TEST(Replay, DtypesThatDoNotFitAreNamed) {
  Saved mixed("matmul", "forward", kMatmul);
  mixed.replace("input/a", DType::bf16, {1, 3, 4});
  expect_exit(mixed.replay(), 2, "tensor 'a': is bf16, expected fp32");
  Saved ids("logp", "forward", kLogp);
  ids.replace("input/token_ids", DType::i32, {1, 3});
  expect_exit(ids.replay(), 2, "tensor 'token_ids': is int32, expected int64");
  Saved result("logp", "forward", kLogp);
  result.replace("output/logp", DType::bf16, {1, 3});
  expect_exit(result.replay(), 2, "tensor 'logp': is bf16, expected fp32");
}

TEST(Replay, MissingTensorsAreNamed) {
  Saved saved("logp", "forward", kLogp);
  saved.tensors.erase(saved.tensors.begin());
  expect_exit(saved.replay(), 2, "holds no tensor 'input/logits'");
}

}  // namespace
}  // namespace checkop::replay_test
