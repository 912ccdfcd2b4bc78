// SPDX-License-Identifier: Apache-2.0
// The operator table: its specs are sound and the folders follow its names.
#include "operator.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "case.hpp"
#include "plugin.hpp"

namespace checkop {
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
    ASSERT_NE(find_pass(*op, "forward"), nullptr) << op->name;
    ASSERT_NE(find_pass(*op, "backward"), nullptr) << op->name;
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
        for (const std::string_view sum : split_dims(spec.reduced)) {
          EXPECT_TRUE(known(sum.substr(0, sum.find('*')))) << op->name << ' ' << spec.tensor.name;
        }
      }
    }
  }
}

TEST(Operator, GradientsAreNamedAfterTheirInputs) {
  for (const Operator* op : operators()) {
    const Pass& forward = *find_pass(*op, "forward");
    for (const OutputSpec& output : find_pass(*op, "backward")->outputs) {
      const auto matches = [&](const TensorSpec& input) {
        return output.tensor.name == fmt::format("d{}", input.name) && output.tensor.dims == input.dims &&
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
    // sm90 holds pieces that Hopper kernels share.
    if (!entry.is_directory() || entry.path().filename() == "sm90") continue;
    EXPECT_NE(find_operator(entry.path().filename().string()), nullptr) << entry.path();
  }
}

TEST(Operator, ShippedCandidatesAreNamedAfterTheirFiles) {
  int seen = 0;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(CHECKOP_BINARY_DIR) / "kernels")) {
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
}  // namespace checkop
