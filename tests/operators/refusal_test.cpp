// SPDX-License-Identifier: Apache-2.0
// Calls that the shipped candidates must refuse before any work: each tensor of each pass in turn gets a wrong rank,
// extent, dtype or strides. A refusal has a message and leaves all outputs unchanged.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "case/inputs.hpp"
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

}  // namespace
}  // namespace checkop::refusal_test
