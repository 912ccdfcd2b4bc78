// SPDX-License-Identifier: Apache-2.0
// Where kernels round: for every output and dtype the smallest set of recipes by which all cases pass.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "judge/recipe_sets.hpp"
#include "report/report.hpp"

namespace checkop {

enum class RecipeAnswer : uint8_t {
  plain,        ///< every case passes without recipes
  recipes,      ///< every case passes under a set of them
  none,         ///< some case fails under every set, or no set serves all cases
  unsupported,  ///< the kernel declines every case
  skipped,      ///< no case had room in memory, or those that had were declined
  empty,        ///< no case has an element of this output
  error         ///< the kernel crashed or hung in some case
};
std::string_view to_string(RecipeAnswer answer);

/// One output of a kernel in all cases of one dtype.
class RecipeCell {
 public:
  /// Adds a case that was judged by RecipeSearch::every_set.
  void add(const CaseRecord& record, size_t output);

  RecipeAnswer answer() const;
  /// The smallest set that serves all cases, where the answer is `recipes`.
  RecipeSet recipes() const;

  int64_t judged() const { return judged_; }             ///< cases with elements to compare
  int64_t unjudged() const { return unjudged_; }         ///< cases that the kernel declined or that had no room
  const std::string& reason() const { return reason_; }  ///< of the first case that has no answer
  const std::string& repeat() const { return repeat_; }  ///< the command that repeats that case

 private:
  void note(const CaseRecord& record, size_t output);

  std::vector<const Recipe*> known_;
  std::vector<std::vector<RecipeSet>> passing_;  ///< of the cases that fail without recipes; see Comparison::every_set
  int64_t judged_ = 0, unjudged_ = 0;
  bool fails_ = false, skipped_ = false, error_ = false;
  std::string reason_, repeat_;
};

/// One output of a kernel.
struct RecipeRow {
  std::string candidate;
  const Operator* op;
  const Pass* pass;
  std::string_view output;
  std::vector<std::string> declared;  ///< by the kernel
  std::map<DType, RecipeCell> cells;
};

class RecipeTable {
 public:
  void add(const CaseRecord& record);
  const std::vector<RecipeRow>& rows() const { return rows_; }  ///< in the order in which they were first seen

  /// 4: a kernel crashed or hung; 1: some cell is none; 0: some cell has an answer; 3: there is none.
  int exit_code() const;

 private:
  std::vector<RecipeRow> rows_;
};

}  // namespace checkop
