// SPDX-License-Identifier: Apache-2.0
// Candidates that compute the gold and then make one mistake with memory or repetition.
#include "mutate/behaviour_faults.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "case/rank_parts.hpp"
#include "mutate/gold_call.hpp"
#include "run/runner.hpp"

namespace checkop {
namespace {

/// The state behind the kernel of run_with_fault(). A call's `kernel` points to its first member.
struct Run {
  checkop_kernel kernel;  ///< must be the first member
  const BehaviourFault* fault;
  const Case* c;
  std::vector<unsigned> calls;  ///< number of calls so far, by rank
};

/// One call and its right result.
struct Site {
  Site(const Operator& op, const Pass& pass, const checkop_call& call)
      : op(op), pass(pass), call(call), values(gold_values(pass, call)) {}

  const Operator& op;
  const Pass& pass;
  const checkop_call& call;
  Values values;

  DType dtype(size_t output) const { return static_cast<DType>(call.outputs[output].dtype); }
  size_t width(size_t output) const { return info(dtype(output)).bytes; }
  std::byte* data(size_t output) const { return static_cast<std::byte*>(call.outputs[output].data); }
  MatrixView view() const {
    const checkop_tensor& t = call.outputs[0];
    return matrix_view(op, pass.outputs[0].tensor, Shape(t.shape, t.shape + t.rank));
  }
  void store_from(size_t output) const {
    for (size_t i = output; i < values.size(); ++i) {
      if (call.outputs[i].data != nullptr) store(call.outputs[i], values[i]);
    }
  }
  /// Stores the rows of output 0 for which keeps(row, first value) is true; `columns` elements per row.
  template <class Keeps>
  void store_rows(int64_t columns, const Keeps& keeps) const {
    const auto n = static_cast<size_t>(columns);
    for (size_t at = 0; n > 0 && at < values[0].size(); at += n) {
      if (keeps(static_cast<int64_t>(at / n), &values[0][at]))
        info(dtype(0)).encode(&values[0][at], data(0) + at * width(0), n);
    }
    store_from(1);
  }
};

void leave_middle_row(const Operator& op, const Pass& pass, const checkop_call& call, unsigned) {
  const Site s(op, pass, call);
  s.store_rows(s.view().columns, [&](int64_t row, const double*) { return row != s.view().rows / 2; });
}

void leave_rows_of_zeros(const Operator& op, const Pass& pass, const checkop_call& call, unsigned) {
  const Site s(op, pass, call);
  const int64_t columns = s.view().columns;
  s.store_rows(columns, [&](int64_t, const double* row) {
    return std::any_of(row, row + columns, [](double x) { return x != 0; });
  });
}

void write_behind_end(const Operator& op, const Pass& pass, const checkop_call& call, unsigned) {
  const Site s(op, pass, call);
  s.store_from(0);
  std::memset(s.data(0) + s.values[0].size() * s.width(0), 0x3f, s.width(0));
}

/// The first floating-point input. Changed ids might be out of range, and the second launch would refuse them.
const checkop_tensor& first_float_input(const checkop_call& call) {
  int32_t i = 0;
  while (i + 1 < call.n_inputs && !info(static_cast<DType>(call.inputs[i].dtype)).is_float) ++i;
  return call.inputs[i];
}

void overwrite_input(const Operator& op, const Pass& pass, const checkop_call& call, unsigned) {
  Site(op, pass, call).store_from(0);
  const checkop_tensor& input = first_float_input(call);
  const size_t width = info(static_cast<DType>(input.dtype)).bytes;
  auto* bytes = static_cast<std::byte*>(input.data);
  std::memset(bytes, 0x3f, width);
  std::memset(bytes + static_cast<size_t>(count_of(input) - 1) * width, 0x3e,
              width);  // the other value was 0x3f..., so at least one of the two elements changes
}

/// The second launch restores the byte that the first one changed.
void toggle_input(const Operator& op, const Pass& pass, const checkop_call& call, unsigned) {
  Site(op, pass, call).store_from(0);
  static_cast<unsigned char*>(first_float_input(call).data)[0] ^= 1U;
}

/// Rounds one element of output 0 the other way: the one that is closest to the middle between two numbers. Its bits
/// change but it stays as accurate, so only a comparison of bits finds it. Looks at the first `count` elements.
void round_a_tie_the_other_way(const Site& s, int64_t count) {
  const DType dtype = s.dtype(0);
  const auto stored_value = [&](size_t e) {
    double value = 0;
    info(dtype).decode(s.data(0) + e * s.width(0), &value, 1);
    return value;
  };
  double closest = -1;
  size_t found = 0;
  for (size_t e = 0; e < static_cast<size_t>(count); ++e) {
    const double value = s.values[0][e], stored = stored_value(e);
    const double off = std::abs(value - stored) / half_ulp(dtype, value);
    if (stored != 0 && off > closest) closest = off, found = e;
  }
  const bool rounded_up = std::abs(stored_value(found)) > std::abs(s.values[0][found]);
  std::byte* element = s.data(0) + found * s.width(0);
  uint64_t bits = 0;
  std::memcpy(&bits, element, s.width(0));  // little-endian, like all of the checker
  bits = rounded_up ? bits - 1 : bits + 1;
  std::memcpy(element, &bits, s.width(0));
}

void change_every_second_call(const Operator& op, const Pass& pass, const checkop_call& call, unsigned calls) {
  const Site s(op, pass, call);
  s.store_from(0);
  if ((calls & 1U) != 0) round_a_tie_the_other_way(s, std::ssize(s.values[0]));
}

void change_single_rows(const Operator& op, const Pass& pass, const checkop_call& call, unsigned) {
  const Site s(op, pass, call);
  s.store_from(0);
  if (s.view().rows == 1) round_a_tie_the_other_way(s, s.view().columns);
}

constexpr std::array kBehaviourFaults{
    BehaviourFault{{"unwritten_row", "the middle row is not written", "unwritten"}, false, leave_middle_row},
    BehaviourFault{
        {"unwritten_zeros", "rows of zeros are taken to be zero already", "unwritten"}, false, leave_rows_of_zeros},
    BehaviourFault{{"out_of_bounds_write", "the element behind the end is written", "guard"}, false, write_behind_end},
    BehaviourFault{{"input_overwritten", "an input is overwritten", "input"}, false, overwrite_input},
    BehaviourFault{
        {"input_toggled", "a run changes an input and the next one puts it back", "input"}, false, toggle_input},
    BehaviourFault{
        {"nondeterministic", "one last bit differs from run to run", "determinism"}, false, change_every_second_call},
    BehaviourFault{
        {"batch_dependent", "one last bit differs where a row is alone", "invariance"}, true, change_single_rows},
};

checkop_status launch(const checkop_call* call) {
  Run& run = *reinterpret_cast<Run*>(const_cast<checkop_kernel*>(call->kernel));
  unsigned& calls = run.calls[static_cast<size_t>(call->rank)];
  return answer(*call, [&] { run.fault->answer(*run.c->op, *run.c->pass, *call, calls++); });
}

}  // namespace

std::span<const BehaviourFault> behaviour_faults() { return kBehaviourFaults; }

RunResult run_with_fault(const BehaviourFault& fault, const Case& c, const std::vector<Tensor>& inputs,
                         std::vector<Tensor>& outputs, const RunChecks& checks) {
  Run run{{sizeof(checkop_kernel), fault.spec.name.data(), c.op->name.data(), c.pass->name.data(), CHECKOP_CPU, 0, 0,
           nullptr, launch},
          &fault,
          &c,
          std::vector<unsigned>(static_cast<size_t>(world_size(c)))};
  Candidate candidate;
  candidate.name = fault.spec.name;
  candidate.op = c.op->name;
  candidate.pass = c.pass->name;
  candidate.kernel = &run.kernel;
  const auto device = open_cpu_device();
  return run_candidate(*device, candidate, c, inputs, outputs, checks);
}

}  // namespace checkop
