/* SPDX-License-Identifier: Apache-2.0
 * check_operator_gtest.h: checks operators inside a GoogleTest binary. C++14; link check_operator::gtest.
 *
 *   checkop_status my_launch(const checkop_call* call);  // as in a plugin: check_operator.h
 *
 *   TEST(RmsNorm, Mine) {
 *     EXPECT_OPERATOR_PASSES("rms_norm", my_launch, "cases/rms_norm.json");
 *     EXPECT_OPERATOR_PASSES("rms_norm/backward", my_backward, "--dtype bf16 --batch 4 --seq 64 --hidden 4096",
 *                            "--device cuda --contract strict.json");
 *   }
 *
 * The launch runs in its own process, forked from the test: a crash or an endless loop becomes a test failure, and the
 * test does not see the launch's side effects. The launch runs in the test's process with --no-isolate, and when the
 * test has used CUDA before, because CUDA does not survive a fork. */
#ifndef CHECK_OPERATOR_GTEST_H
#define CHECK_OPERATOR_GTEST_H

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "check_operator.h"

/* Function of libcheck_operator_gtest. Runs the checks that `arguments` select and returns the program's exit code.
 * Passes the text about checks that did not pass to `say`. `test` is the name for --gtest_filter. If kernel->device is
 * -1, --device decides, else the library chooses. */
extern "C" int check_operator_check_linked(const checkop_kernel* kernel, const char* const* arguments, int n_arguments,
                                           const char* test, void (*say)(void* context, const char* text),
                                           void* context);

namespace check_operator {

/// A launch function, or an entry of a plugin's table, which can also have a workspace and architecture limits.
class Kernel {
 public:
  Kernel(checkop_status (*launch)(const checkop_call*)) : entry_() {
    entry_.struct_size = sizeof entry_;
    entry_.device = -1;
    entry_.launch = launch;
  }
  Kernel(const checkop_kernel& entry) : entry_(entry) {}
  const checkop_kernel& entry() const { return entry_; }

 private:
  checkop_kernel entry_;
};

/// Command-line arguments of a check. A string that begins with "-" holds flags of check_operator that choose cases,
/// device and contract: "--batch 4 --seq 64". Any other string is a file or folder of cases. A list holds one argument
/// per element, unchanged.
class Words {
 public:
  Words(const char* text) : Words(std::string(text)) {}
  Words(const std::string& text) {
    if (text.compare(0, 1, "-") != 0) {
      list_ = {"--cases", text};
      return;
    }
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = text.find(' ', begin) == std::string::npos ? text.size() : text.find(' ', begin);
      if (end > begin) list_.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  Words(const std::vector<std::string>& list) : list_(list) {}
  Words(std::initializer_list<const char*> list) : list_(list.begin(), list.end()) {}
  const std::vector<std::string>& list() const { return list_; }

 private:
  std::vector<std::string> list_;
};

class Arguments {
 public:
  Arguments(std::initializer_list<Words> parts) {
    for (const Words& words : parts) list_.insert(list_.end(), words.list().begin(), words.list().end());
  }
  const std::vector<std::string>& list() const { return list_; }

 private:
  std::vector<std::string> list_;
};

/// Predicate of the assertions below. `op` is "rms_norm" (its forward pass) or "rms_norm/backward".
inline ::testing::AssertionResult operator_passes(const char* op_text, const char* launch_text, const char*,
                                                  const std::string& op, const Kernel& kernel,
                                                  const Arguments& arguments) {
  const std::size_t slash = op.find('/');
  const std::string name = op.substr(0, slash), pass = slash == std::string::npos ? "forward" : op.substr(slash + 1);
  checkop_kernel entry = kernel.entry();
  if (entry.name == nullptr) entry.name = launch_text;
  entry.op = name.c_str();
  entry.pass = pass.c_str();
  std::vector<const char*> list;
  for (const std::string& argument : arguments.list()) list.push_back(argument.c_str());
  const ::testing::TestInfo* test = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string filter = test == nullptr ? "*" : std::string(test->test_suite_name()) + "." + test->name();
  std::string text;
  const int code = check_operator_check_linked(
      &entry, list.data(), static_cast<int>(list.size()), filter.c_str(),
      [](void* context, const char* said) { *static_cast<std::string*>(context) += said; }, &text);
  if (code == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << launch_text << " does not pass as " << op_text << "\n" << text;
}

}  // namespace check_operator

/* EXPECT_OPERATOR_PASSES(op, launch, cases...): every check passes, and at least one check ran. */
#define EXPECT_OPERATOR_PASSES(op, launch, ...) \
  EXPECT_PRED_FORMAT3(::check_operator::operator_passes, op, launch, ::check_operator::Arguments({__VA_ARGS__}))
#define ASSERT_OPERATOR_PASSES(op, launch, ...) \
  ASSERT_PRED_FORMAT3(::check_operator::operator_passes, op, launch, ::check_operator::Arguments({__VA_ARGS__}))

#endif
