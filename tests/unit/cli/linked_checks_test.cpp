// SPDX-License-Identifier: Apache-2.0
// Checks of kernels linked into this program, and the header that a GoogleTest binary uses for them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "abi/check_operator_gtest.h"
#include "base/paths.hpp"
#include "cli/linked_checks.hpp"
#include "support/built.hpp"
#include "support/process.hpp"
#include "support/source_tree.hpp"

namespace {

/// Records the header's calls, in place of the library.
struct Asked {
  std::string name, op, pass, test;
  int device = 0;
  std::vector<std::string> arguments;
} asked;

checkop_status silu(const checkop_call* call) {
  const checkop_tensor& x = call->inputs[0];
  const bool contiguous = x.strides[1] == x.shape[2] && x.strides[0] == x.shape[1] * x.shape[2];
  if (x.dtype != CHECKOP_F32 || !contiguous) return CHECKOP_UNSUPPORTED;
  for (int64_t i = 0; i < x.shape[0] * x.shape[1] * x.shape[2]; ++i) {
    const float value = static_cast<const float*>(x.data)[i];
    static_cast<float*>(call->outputs[0].data)[i] = value / (1 + std::exp(-value));
  }
  return CHECKOP_OK;
}

checkop_status nothing(const checkop_call*) { return CHECKOP_OK; }
checkop_status leaves(const checkop_call*) { std::_Exit(0); }

int calls = 0;  // in this process
checkop_status counting(const checkop_call* call) {
  ++calls;
  return silu(call);
}

}  // namespace

extern "C" int check_operator_check_linked(const checkop_kernel* kernel, const char* const* arguments, int n_arguments,
                                           const char* test, void (*say)(void* context, const char* text),
                                           void* context) {
  asked = {kernel->name, kernel->op, kernel->pass, test, kernel->device, {arguments, arguments + n_arguments}};
  if (n_arguments == 0) return 0;
  say(context, "what did ");
  say(context, "not pass");
  return 1;
}

namespace checkop::linked_checks_test {
namespace {

using Strings = std::vector<std::string>;
using ::check_operator::Arguments;
using ::check_operator::Kernel;
using ::check_operator::operator_passes;

TEST(GTestHeader, TakesFilesFlagsAndLists) {
  const std::string file = "my cases.json";
  const Strings list{"--dtype", "bf16"};
  EXPECT_EQ(Arguments({file}).list(), (Strings{"--cases", "my cases.json"}));
  EXPECT_EQ(Arguments({"--batch 4  --seq 8 "}).list(), (Strings{"--batch", "4", "--seq", "8"}));
  EXPECT_EQ(Arguments({"a.json", "--device cpu", list, {"--contract", "a b.json"}}).list(),
            (Strings{"--cases", "a.json", "--device", "cpu", "--dtype", "bf16", "--contract", "a b.json"}));
}

TEST(GTestHeader, NamesOperatorPassCandidateAndTest) {
  EXPECT_OPERATOR_PASSES("silu", nothing);
  EXPECT_EQ(asked.op + " " + asked.pass + " " + asked.name, "silu forward nothing");
  EXPECT_EQ(asked.test, "GTestHeader.NamesOperatorPassCandidateAndTest");
  EXPECT_EQ(asked.device, -1);
  const checkop_kernel entry{sizeof(checkop_kernel), "mine", "", "", CHECKOP_CUDA, 0, 0, nullptr, nothing};
  EXPECT_OPERATOR_PASSES("silu/backward", entry);
  EXPECT_EQ(asked.op + " " + asked.pass + " " + asked.name, "silu backward mine");
  EXPECT_EQ(asked.device, CHECKOP_CUDA);
}

TEST(GTestHeader, AnyCodeButZeroIsAFailureWithTheText) {
  const auto result = operator_passes("\"silu\"", "nothing", "", "silu", Kernel(nothing), Arguments({"--batch 1"}));
  EXPECT_FALSE(result);
  EXPECT_STREQ(result.message(), "nothing does not pass as \"silu\"\nwhat did not pass");
}

checkop_kernel entry_of(checkop_status (*launch)(const checkop_call*), const char* name = "ns::mine") {
  return {sizeof(checkop_kernel), name, "silu", "forward", -1, 0, 0, nullptr, launch};
}

const Strings kSmall{"--device", "cpu", "--batch", "2", "--seq", "3", "--hidden", "8"};

Strings small_and(const Strings& more) {
  Strings all = kSmall;
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(LinkedChecks, ARightKernelPassesWithoutAWord) {
  const InSourceTree here;
  const LinkedOutcome outcome = check_linked(entry_of(silu), kSmall, "A.B");
  EXPECT_EQ(outcome.code, 0) << outcome.text;
  EXPECT_EQ(outcome.text, "");
}

TEST(LinkedChecks, AWrongOneFailsWithElementAndTest) {
  const InSourceTree here;
  const LinkedOutcome outcome = check_linked(entry_of(nothing), kSmall, "A.B");
  EXPECT_EQ(outcome.code, 1);
  for (const std::string part : {"1 of 1 checks did not pass", "fail: silu/forward  ns__mine  fp32", "never written",
                                 "checkop_tests --gtest_filter=A.B # --op silu --pass forward"}) {
    EXPECT_NE(outcome.text.find(part), std::string::npos) << "no '" << part << "' in: " << outcome.text;
  }
}

TEST(LinkedChecks, ACandidateThatEndsItsProcessDoesNotEndThisOne) {
  const InSourceTree here;
  const LinkedOutcome outcome = check_linked(entry_of(leaves), kSmall, "A.B");
  EXPECT_EQ(outcome.code, 4);
  EXPECT_NE(outcome.text.find("exited with code 0 before it answered"), std::string::npos) << outcome.text;
}

TEST(LinkedChecks, RunInAProcessOfTheirOwnUnlessTold) {
  const InSourceTree here;
  calls = 0;
  EXPECT_EQ(check_linked(entry_of(counting), kSmall, "A.B").code, 0);
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(check_linked(entry_of(counting), small_and({"--no-isolate"}), "A.B").code, 0);
  EXPECT_GT(calls, 1);
  calls = 0;
  EXPECT_EQ(check_linked(entry_of(counting), kSmall, "A.B").code, 0);  // and again
  EXPECT_EQ(calls, 0);
}

TEST(LinkedChecks, InvarianceAskedForByNameIsCheckedAsTheProgramDoes) {
  const InSourceTree here;
  const Strings arguments{"--device", "cpu", "--batch", "2", "--seq", "24", "--hidden", "64", "--check", "invariance"};
  const LinkedOutcome outcome = check_linked(entry_of(silu), arguments, "A.B");
  // The positive control is installed beside the program, not beside this test: without it no pass counts.
  EXPECT_EQ(outcome.code, 4) << outcome.text;
  EXPECT_NE(outcome.text.find("the positive control split_k_by_rows"), std::string::npos) << outcome.text;
  set_program_folder(kBuildFolder);
  EXPECT_EQ(check_linked(entry_of(silu), arguments, "A.B").code, 0);
  set_program_folder("");
}

TEST(LinkedChecks, NothingCheckedIsNoPass) {
  const InSourceTree here;
  const LinkedOutcome outcome = check_linked(entry_of(silu), small_and({"--filter", "none"}), "A.B");
  EXPECT_EQ(outcome.code, 3);
  EXPECT_NE(outcome.text.find("nothing was checked"), std::string::npos) << outcome.text;
  EXPECT_EQ(check_linked(entry_of(silu), small_and({"--dtype", "bf16"}), "A.B").code, 3);  // unsupported
}

TEST(LinkedChecks, SeedsAreTaken) {
  const InSourceTree here;
  EXPECT_EQ(check_linked(entry_of(silu), small_and({"--seed", "7", "--grad-seed", "8"}), "A.B").code, 0);
}

TEST(LinkedChecks, WrongQuestionsSayWhatIsWrong) {
  const InSourceTree here;
  const std::pair<Strings, std::string> mistakes[] = {
      {{"--op", "logp"}, "--op is set by the first arguments"},
      {{"--pass=backward"},
       "EXPECT_OPERATOR_PASSES: --pass is set by the first arguments; write (\"OP\", launch, ...), or "
       "(\"OP/backward\", "
       "launch, ...)"},
      {{"--check-grad"}, "--check-grad is set by"},
      {{"--json", "x.json"}, "--json has no effect here"},
      {{"--list"}, "--list has no effect here"},
      {{"bench"}, "EXPECT_OPERATOR_PASSES: got a command; give flags that choose cases"},
      {{"--version"}, "EXPECT_OPERATOR_PASSES: got --help or --version; leave it out"},
      {{"--batch", "-1"}, "--batch: expected an integer"},
      {{"--contract", "none.json"}, "none.json: cannot be opened"},
      {{"--bath", "1"}, "did you mean '--batch'?"},
  };
  for (const auto& [arguments, error] : mistakes) {
    const LinkedOutcome outcome = check_linked(entry_of(silu), arguments, "A.B");
    EXPECT_EQ(outcome.code, 2) << error;
    EXPECT_NE(outcome.text.find(error), std::string::npos) << "no '" << error << "' in: " << outcome.text;
  }
  checkop_kernel unsized = entry_of(silu);
  unsized.struct_size = 0;
  EXPECT_NE(check_linked(unsized, kSmall, "A.B")
                .text.find("EXPECT_OPERATOR_PASSES: struct_size of the kernel is 0; set it to sizeof(checkop_kernel)"),
            std::string::npos);
}

TEST(NoIsolate, TheProgramItselfRunsTheCandidate) {
  const std::string plugin = std::string("--plugin ") + kPluginFolder + "/crashes.so ";
  const std::string tiny = "--op matmul --device cpu --batch 1 --seq 2 --k-dim 2 --n-dim 4 --no-isolate ";
  expect_exit(run_program(tiny + "--candidate native"), 0, "[  PASSED  ] 1 pass");
  EXPECT_EQ(run_program(tiny + plugin + "--candidate aborts").code, 128 + 6);
  expect_exit(run_program(tiny + "--timeout-s 5"), 2, "--timeout-s: has no effect with --no-isolate");
}

}  // namespace
}  // namespace checkop::linked_checks_test
