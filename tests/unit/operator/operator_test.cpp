// SPDX-License-Identifier: Apache-2.0
// The operator table: its specs are consistent, and folders have the operators' names.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "base/error.hpp"
#include "case/case.hpp"
#include "device/plugin.hpp"
#include "operator/operator.hpp"
#include "support/built.hpp"

namespace checkop::operator_test {
namespace {

namespace fs = std::filesystem;

TEST(Operator, NamesAreUnique) {
  std::set<std::string_view> names;
  for (const Operator* op : operators()) EXPECT_TRUE(names.insert(op->name).second) << op->name;
  EXPECT_GE(names.size(), 3u);
}

TEST(Operator, IsFoundByName) {
  for (const Operator* op : operators()) EXPECT_EQ(find_operator(op->name), op);
  EXPECT_EQ(find_operator("lgp"), nullptr);
  EXPECT_EQ(find_pass(*find_operator("logp"), "sideways"), nullptr);
}

TEST(Operator, HasAGoldForEveryPass) {
  for (const Operator* op : operators()) {
    EXPECT_EQ(op->passes.front().name, "forward") << op->name;
    EXPECT_EQ(find_pass(*op, "backward") == nullptr, op->passes.size() == 1) << op->name;
    for (const Pass& pass : op->passes) {
      EXPECT_NE(pass.gold, nullptr);
      EXPECT_FALSE(pass.inputs.empty());
      EXPECT_FALSE(pass.outputs.empty());
    }
  }
}

TEST(Operator, FanInAndReductionsNameDimensions) {
  for (const Operator* op : operators()) {
    const auto dims = dims_of(*op);
    const auto known = [&](std::string_view name) { return std::find(dims.begin(), dims.end(), name) != dims.end(); };
    for (const Pass& pass : op->passes) {
      for (const TensorSpec& spec : pass.inputs) EXPECT_TRUE(spec.fan_in.empty() || known(spec.fan_in)) << spec.name;
      for (const OutputSpec& spec : pass.outputs) {
        for (const std::string_view name : names_in(spec.reduced)) {
          EXPECT_TRUE(known(name)) << op->name << ' ' << spec.tensor.name;
        }
      }
    }
  }
}

/// batch = 2, seq = 3, anything else 5.
int64_t sample_size(std::string_view name) { return name == "batch" ? 2 : name == "seq" ? 3 : 5; }

TEST(Operator, ExtentsAreNamesAndSumsOfProducts) {
  EXPECT_EQ(evaluate_extent("hidden", sample_size), 5);
  EXPECT_EQ(evaluate_extent("batch*seq", sample_size), 6);
  EXPECT_EQ(evaluate_extent("batch+1", sample_size), 3);
  EXPECT_EQ(evaluate_extent("batch*seq+hidden+2*seq", sample_size), 17);
  EXPECT_EQ(evaluate_extent("hidden/2", sample_size), 3) << "rounded up";
  EXPECT_EQ(evaluate_extent("batch*seq/128", sample_size), 2) << "a name over a number is one factor";
  EXPECT_EQ(evaluate_extent("(batch*seq)/2", sample_size), 3) << "a product over a number, rounded up once";
  EXPECT_EQ(evaluate_extent("(batch*seq)/2+hidden", sample_size), 8);
  EXPECT_EQ(evaluate_extent("hidden/128", [](std::string_view) { return int64_t{0}; }), 0);
  EXPECT_EQ(evaluate_extent("12*hidden", sample_size), 60);
  EXPECT_EQ(names_in("hidden/128 hidden/2"), (std::vector<std::string_view>{"hidden", "hidden"}));
  EXPECT_EQ(names_in("batch*seq hidden batch+1"), (std::vector<std::string_view>{"batch", "seq", "hidden", "batch"}));
  EXPECT_EQ(names_in("(batch*seq)/128"), (std::vector<std::string_view>{"batch", "seq"}));
  EXPECT_TRUE(names_in("").empty());
}

TEST(Operator, ExtentsThatDoNotFitAreRefusedOrHeld) {
  const auto huge = [](std::string_view) { return int64_t{1} << 62; };
  EXPECT_EQ(evaluate_extent("batch+seq+hidden", huge), int64_t{1} << 62);
  EXPECT_THROW(evaluate_extent("batch*2", huge), InputError);
}

TEST(Operator, DimensionListsAreWellFormed) {
  const auto is_name = [](std::string_view name) {
    return !name.empty() && name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") == std::string_view::npos;
  };
  const auto expect_sound = [&](const Operator& op, const TensorSpec& spec) {
    for (const std::string_view extent : split_dims(spec.dims)) {
      const bool is_number = extent.find_first_not_of("0123456789") == std::string_view::npos;
      EXPECT_EQ(names_in(extent).empty(), is_number) << op.name << ' ' << spec.name << ": '" << extent << "'";
      EXPECT_GE(evaluate_extent(extent, sample_size), 1) << op.name << ' ' << spec.name;
    }
    for (const std::string_view name : names_in(spec.dims))
      EXPECT_TRUE(is_name(name)) << op.name << " '" << name << "'";
  };
  for (const Operator* op : operators()) {
    for (const std::string_view name : split_dims(op->row_dims)) EXPECT_TRUE(is_name(name)) << op->name;
    for (const Pass& pass : op->passes) {
      for (const TensorSpec& spec : pass.inputs) expect_sound(*op, spec);
      for (const OutputSpec& spec : pass.outputs) expect_sound(*op, spec.tensor);
    }
  }
}

TEST(Operator, GradientsAreNamedAfterTheirInputs) {
  for (const Operator* op : operators()) {
    const Pass& forward = *find_pass(*op, "forward");
    const Pass* const backward = find_pass(*op, "backward");
    if (backward == nullptr) continue;
    for (const OutputSpec& output : backward->outputs) {
      const auto matches = [&](const TensorSpec& input) {
        // Where leaves are added, one gradient is that of each of them.
        const bool has_dims =
            output.tensor.dims == input.dims ||
            (op->parallel_dim == "leaves" && input.dims == fmt::format("leaves {}", output.tensor.dims));
        return output.tensor.name == fmt::format("d{}", input.name) && has_dims &&
               output.tensor.optional == input.optional;
      };
      EXPECT_TRUE(std::any_of(forward.inputs.begin(), forward.inputs.end(), matches)) << output.tensor.name;
    }
  }
}

TEST(Operator, HasItsFourFiles) {
  const fs::path root = CHECKOP_SOURCE_DIR;
  for (const Operator* op : operators()) {
    const std::string name(op->name);
    EXPECT_TRUE(fs::exists(root / "reference" / (name + ".cpp"))) << name;
    EXPECT_TRUE(fs::exists(root / "cases" / (name + ".json"))) << name;
    EXPECT_TRUE(fs::is_directory(root / "kernels" / name)) << name;
  }
  for (const auto& entry : fs::directory_iterator(root / "kernels")) {
    // Folders of pieces that kernels share, and of the positive control.
    const std::set<std::string> shared{"control", "cpu", "cuda", "gemm", "sm90"};
    const std::string folder = entry.path().filename().string();
    EXPECT_TRUE(shared.contains(folder) || find_operator(folder) != nullptr) << entry.path();
  }
}

TEST(Operator, ShippedCandidatesAreNamedAfterTheirFiles) {
  int seen = 0;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(kBuildFolder) / "kernels")) {
    if (entry.path().extension() != ".so") continue;
    for (const Candidate& candidate : load_plugin(entry.path().string())) {
      EXPECT_EQ(candidate.name, entry.path().stem());
      EXPECT_EQ(candidate.op, entry.path().parent_path().filename());
      ++seen;
    }
  }
  EXPECT_GE(seen, 6);
}

TEST(Operator, PerRowTensorsStartWithTheRowDimensions) {
  const Operator& op = *find_operator("linear_logp");
  const Pass& forward = *find_pass(op, "forward");
  EXPECT_TRUE(is_per_row(op, forward.inputs[0]));
  EXPECT_FALSE(is_per_row(op, forward.inputs[1]));
  EXPECT_TRUE(is_per_row(op, forward.inputs[2]));
  const MatrixView hidden = matrix_view(op, forward.inputs[0], {2, 3, 8}),
                   weight = matrix_view(op, forward.inputs[1], {11, 8});
  EXPECT_EQ(hidden.rows, 6);
  EXPECT_EQ(hidden.columns, 8);
  EXPECT_EQ(weight.rows, 11);
  EXPECT_EQ(matrix_view(op, forward.inputs[3], {11}).columns, 1);
}

}  // namespace
}  // namespace checkop::operator_test
