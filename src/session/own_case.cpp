// SPDX-License-Identifier: Apache-2.0
// Makes a case from files and flags, for a known operator or one that only its tensors describe.
#include "session/own_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/error.hpp"
#include "base/text.hpp"
#include "case/sweep.hpp"
#include "device/plugin.hpp"
#include "operator/operator_added.hpp"
#include "session/own_data.hpp"
#include "session/own_inputs.hpp"

namespace checkop {

Case case_of_given_files(const RunOptions& options) {
  if (!options.has("--op") || options.ops.size() != 1)
    throw InputError("--op", "does not name one operator", "say whose inputs these are; any name will do with --gold");
  const std::string name = options.ops.front();
  if (options.passes.size() != 1 || options.passes.front() == "all")
    throw InputError("--pass", "does not name one pass", "say whether these are inputs of forward or of backward");
  const SafetensorsReader inputs(options.inputs_file);
  if (const Operator* op = find_operator(name)) {
    if (!options.numerics.empty())
      throw InputError("--class", fmt::format("has no effect on '{}', whose outputs have a class already", name),
                       "leave it out");
    if (options.has("--dtype"))
      throw InputError("--dtype", "has no effect on the tensors of --inputs, which have their own", "leave it out");
    return case_of_inputs(inputs, *op, *parse_passes("--pass", *op, options.passes).front(), options.attrs,
                          options.shard_bounds);
  }
  if (options.gold_file.empty() || options.numerics.empty()) {
    std::vector<std::string> known;
    for (const Operator* op : operators()) known.emplace_back(op->name);
    const std::string nearest = did_you_mean(name, known);
    throw InputError("--op", fmt::format("unknown operator '{}'", name),
                     fmt::format("{}{}an operator of your own needs --gold FILE and --class CLASS", nearest,
                                 nearest.empty() ? "" : " "));
  }
  if (!is_candidate_name(name)) throw InputError("--op", fmt::format("'{}' is no name", name), kCandidateNameHint);
  if (options.passes.front() != "forward" && options.passes.front() != "backward")
    throw InputError("--pass", fmt::format("unknown pass '{}'", options.passes.front()), "use forward or backward");
  if (!options.shard_bounds.empty())
    throw InputError("--shard-bounds", "an operator of your own cannot be tensor-parallel", "leave it out");
  if (!options.attrs.empty())
    throw InputError(fmt::format("attribute '{}'", options.attrs.begin()->first),
                     "an operator of your own has no attributes", "give it as an input");
  if (std::find(options.checks.begin(), options.checks.end(), "invariance") != options.checks.end())
    throw InputError("--check", "invariance compares rows, and the rows of an operator of your own are not known",
                     "leave it out: --check accuracy,determinism,memory");
  const SafetensorsReader gold(options.gold_file);
  std::vector<SafetensorsEntry> outputs;
  for (const SafetensorsEntry& entry : gold.entries()) {
    if (!GivenGold::is_companion(gold, entry.name)) outputs.push_back(entry);
  }
  if (outputs.empty()) throw InputError(gold.path(), "holds no tensors", "give the gold of every output");
  // An fp64 gold may belong to narrower outputs, of --dtype, or of the dtype of the first floating-point input.
  const auto number = std::find_if(inputs.entries().begin(), inputs.entries().end(),
                                   [](const SafetensorsEntry& entry) { return info(entry.dtype).is_float; });
  const DType narrower = options.has("--dtype")             ? parse_dtypes("--dtype", options.dtypes).front()
                         : number != inputs.entries().end() ? number->dtype
                                                            : DType::f64;
  for (SafetensorsEntry& output : outputs) {
    if (output.dtype == DType::f64) output.dtype = narrower;
  }
  // Static, because forked processes and the report refer to it until the end.
  static std::unique_ptr<const GivenOperator> own;
  own = std::make_unique<const GivenOperator>(name, options.passes.front(), parse_numerics(options.numerics).value(),
                                              options.terms, inputs.entries(), outputs);
  add_operator(own->op());
  validate(own->as_case());
  return own->as_case();
}

}  // namespace checkop
