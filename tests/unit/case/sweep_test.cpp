// SPDX-License-Identifier: Apache-2.0
// Lists and ranges -> cases.
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "case/sweep.hpp"
#include "support/contract_helper.hpp"

namespace checkop::sweep_test {
namespace {

using contract_test::error_of;
using Sizes = std::vector<int64_t>;

TEST(Sweep, SizesAreValuesListsAndRanges) {
  EXPECT_EQ(parse_sizes("--seq", "7"), (Sizes{7}));
  EXPECT_EQ(parse_sizes("--seq", "1,7,64"), (Sizes{1, 7, 64}));
  EXPECT_EQ(parse_sizes("--seq", "1:10:3"), (Sizes{1, 4, 7, 10}));
  EXPECT_EQ(parse_sizes("--seq", "1:100:x10"), (Sizes{1, 10, 100}));
  EXPECT_EQ(parse_sizes("--seq", "2:4,9"), (Sizes{2, 3, 4, 9}));
  EXPECT_EQ(parse_sizes("--seq", "0,0:2", 0), (Sizes{0, 0, 1, 2}));
}

TEST(Sweep, BadSizesNameTheFlagAndTheValue) {
  for (const char* text : {"0", "-1", "x", "", "1,", "1.5", "3:1", "1:8:x1", "1:8:0", "1:9223372036854775807:1"}) {
    const std::string message = error_of([&] { parse_sizes("--seq", text); });
    EXPECT_EQ(message.rfind("--seq: ", 0), 0u) << text << " -> " << message;
  }
  EXPECT_NE(error_of([] { parse_sizes("--seq", "0:8:x2", 0); }).find("never ends"), std::string::npos);
  EXPECT_EQ(error_of([] { parse_sizes("--vocab", "-1"); }).substr(0, 46),
            "--vocab: expected an integer >= 1, got -1; giv");
}

TEST(Sweep, UnknownNamesAreAnsweredWithTheNearest) {
  EXPECT_NE(error_of([] { parse_operators("--op", {"lgp"}); }).find("did you mean 'logp'?"), std::string::npos);
  EXPECT_NE(error_of([] { parse_dtypes("--dtype", {"bf61"}); }).find("--dtype"), std::string::npos);
  EXPECT_NE(error_of([] { parse_dtypes("--dtype", {"int64"}); }).find("floating-point"), std::string::npos);
  EXPECT_NE(error_of([] { parse_passes("--pass", *find_operator("logp"), {"foward"}); }).find("'forward'"),
            std::string::npos);
  EXPECT_NE(error_of([] { parse_input_mode("--input-mode", "zeros"); }).find("known:"), std::string::npos);
  EXPECT_NE(error_of([] { parse_grad_mode("--grad-mode", "zeros"); }).find("known:"), std::string::npos);
}

TEST(Sweep, ExpandsToTheCrossProduct) {
  Sweep sweep;
  sweep.op = find_operator("logp");
  sweep.passes = parse_passes("", *sweep.op, {"all"});
  sweep.dtypes = parse_dtypes("", {"all"});
  sweep.optionals = parse_optionals("", *sweep.op, {sweep.op}, {"none"});
  sweep.dims = {{"vocab", {1, 2}}, {"batch", {3}}};
  std::vector<Case> cases;
  expand(sweep, cases);
  EXPECT_EQ(cases.size(), 2u * 3u * 2u);
  EXPECT_EQ(case_name(cases.front()), "logp-fp32-3x16x1");
  EXPECT_EQ(cases.back().pass->name, "backward");
}

Sweep forward_sweep(std::string_view op) {
  Sweep sweep;
  sweep.op = find_operator(op);
  sweep.passes = parse_passes("", *sweep.op, {"forward"});
  sweep.dtypes = parse_dtypes("", {"fp32"});
  sweep.optionals = parse_optionals("", *sweep.op, {sweep.op}, {"none"});
  return sweep;
}

TEST(Sweep, WhatIsGivenWinsOverPresetsAndTheseOverDefaults) {
  Sweep sweep = forward_sweep("rms_norm");
  sweep.presets = {{{{"hidden", 8}}, {{"eps", 1e-5}}}, {{{"hidden", 9}}, {{"eps", 1e-4}}}};
  std::vector<Case> cases;
  expand(sweep, cases);
  ASSERT_EQ(cases.size(), 2u);
  EXPECT_EQ(case_name(cases[0]), "rms_norm-fp32-2x16x8+eps=1e-05");
  EXPECT_EQ(case_name(cases[1]), "rms_norm-fp32-2x16x9+eps=0.0001");
  sweep.dims["hidden"] = {3, 4};
  sweep.attrs["eps"] = 1e-3;
  cases.clear();
  expand(sweep, cases);
  ASSERT_EQ(cases.size(), 2u) << "presets that differ in nothing else are one";
  EXPECT_EQ(case_name(cases[1]), "rms_norm-fp32-2x16x4+eps=0.001");
}

TEST(Sweep, ValuesHaveTheSizeOfKeysUnlessVDimIsGiven) {
  Sweep sweep = forward_sweep("attention");
  sweep.dims["head_dim"] = {4, 8};
  std::vector<Case> cases;
  expand(sweep, cases);
  ASSERT_EQ(cases.size(), 2u);
  for (const Case& c : cases) EXPECT_FALSE(c.dims.contains("v_dim"));
  sweep.dims["v_dim"] = {4};
  cases.clear();
  expand(sweep, cases);
  ASSERT_EQ(cases.size(), 2u);
  EXPECT_FALSE(cases[0].dims.contains("v_dim"));
  EXPECT_EQ(cases[1].dims.at("v_dim"), 4);
}

TEST(Sweep, TooManyCasesAreRefusedBeforeAnyIsMade) {
  Sweep sweep = forward_sweep("attention");
  for (const char* dim : {"batch", "q_seq", "kv_seq", "head_dim"}) sweep.dims[dim] = parse_sizes("", "1:100000");
  std::vector<Case> cases;
  EXPECT_EQ(error_of([&] { expand(sweep, cases); }),
            "cases of attention: the lists make more than 100000 cases; give shorter lists");
  EXPECT_TRUE(cases.empty());
}

TEST(Sweep, LongListsOfSizesAreRefused) {
  std::string list = "1";
  for (size_t i = 0; i < kMaxSizes; ++i) list += ",1";
  EXPECT_EQ(error_of([&] { parse_sizes("--seq", list); }), "--seq: lists more than 100000 sizes; give fewer");
  EXPECT_NE(error_of([] { parse_sizes("--seq", "1:100001"); }).find("gives more than 100000 sizes"), std::string::npos);
}

TEST(Sweep, OptionalInputsAreSweptOnAndOff) {
  const Operator *linear = find_operator("linear_logp"), *logp = find_operator("logp");
  EXPECT_EQ(parse_optionals("--with", *linear, {linear}, {"none", "bias"}).size(), 2u);
  EXPECT_TRUE(parse_optionals("--with", *linear, {linear}, {"bias"}).front().contains("bias"));
  EXPECT_TRUE(parse_optionals("--with", *logp, {logp, linear}, {"bias"}).front().empty());
  EXPECT_NE(error_of([&] { parse_optionals("--with", *linear, {linear}, {"bia+bias"}); }).find("'bia'"),
            std::string::npos);
}

TEST(Sweep, RangesEndWhereIntegersDo) {
  EXPECT_EQ(parse_sizes("--seq", "9223372036854775806:9223372036854775807:5").size(), 1u);
  EXPECT_EQ(parse_sizes("--seq", "1:9223372036854775807:x4611686018427387904").size(), 2u);
}

}  // namespace
}  // namespace checkop::sweep_test
