// SPDX-License-Identifier: Apache-2.0
// Emulates a pass in three orders of addition and counts the changed bits.
#include "judge/sensitivity.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <optional>

#include "base/error.hpp"
#include "base/parallel.hpp"
#include "case/inputs.hpp"
#include "case/sampling.hpp"
#include "judge/gold.hpp"
#include "operator/emulation.hpp"
#include "run/invariance/contexts.hpp"
#include "run/invariance/rows.hpp"
#include "tensor/bits.hpp"

namespace checkop {
namespace {

constexpr int64_t kFewestTerms = 3, kShortest = 32;
constexpr int64_t kMostRows = 1 << 16;

/// Limits of a case to which rows were added: a CPU launches it in seconds, a GPU waits for its data.
struct Limits {
  double work;
  int64_t bytes;
};
constexpr Limits kOnCpu{4e8, int64_t{64} << 20}, kOnGpu{4e10, int64_t{1} << 30};
/// How many times the requested work a single row may take.
constexpr double kFarTooMuch = 64;

/// The emulated case and its inputs.
struct Perturbed {
  Case c;
  std::vector<Tensor> inputs;
};

/// Approximate multiply-adds of the pass: for each output, its elements times the length of their sums.
/// gold_work() is an upper bound. It multiplies dimensions that should be added (cached and new keys) or counted once
/// (query heads and key heads).
double work_of(const Case& c) {
  double of_sums = 0;
  for (const OutputSpec& spec : c.pass->outputs) {
    if (!is_present(c, spec.tensor)) continue;
    const auto own = split_dims(spec.tensor.dims);
    auto work = static_cast<double>(element_count(shape_of(c, spec.tensor)));
    for (const std::string_view summed : split_dims(spec.reduced))
      if (std::find(own.begin(), own.end(), summed) == own.end()) work *= static_cast<double>(extent_of(c, summed));
    of_sums += work;
  }
  return std::min(gold_work(c), of_sums);
}

Case with_rows(const Case& c, int64_t rows) { return slice_rows(c, 0, rows); }

/// The number of rows of `c` that is enough to know a share, even if more rows are cheap.
int64_t enough_rows(const Case& c) {
  constexpr int64_t kEnoughBytes = int64_t{16} << 20;
  const int64_t of_one = tensor_bytes(with_rows(c, 1)), of_more = tensor_bytes(with_rows(c, 2)) - of_one;
  return std::clamp<int64_t>(of_more > 0 ? kEnoughBytes / of_more : kMostRows, 1, kMostRows);
}

/// Generates some rows of `c`, shortened to what can be emulated in time; nullopt if that is impossible.
std::optional<Perturbed> generated_rows(const Case& c, unsigned threads, double work) {
  Case sample = with_rows(c, 1);
  if (sample.dtype == DType::f64) sample.dtype = DType::f32;
  while (work_of(sample) > work) {
    const auto of_rows = split_dims(c.op->row_dims);
    std::string_view longest;
    for (const auto& [name, extent] : sample.dims) {
      const bool fits = extent % 2 == 0 && extent / 2 >= kShortest;
      if (fits && std::find(of_rows.begin(), of_rows.end(), name) == of_rows.end() &&
          (longest.empty() || extent > sample.dims.find(longest)->second)) {
        longest = name;
      }
    }
    if (longest.empty()) break;
    sample.dims.find(longest)->second /= 2;
  }
  if (work_of(sample) > kFarTooMuch * work) return {};
  sample = with_rows(sample, std::clamp<int64_t>(static_cast<int64_t>(work / work_of(sample)), 1, enough_rows(sample)));
  return Perturbed{sample, make_inputs(sample, threads)};
}

/// Rows spread evenly over `inputs`, as many as can be emulated in time; nullopt if one row is too much.
std::optional<Perturbed> given_rows(const Case& c, const std::vector<Tensor>& inputs, double work) {
  const double of_row = work_of(with_rows(c, 1));
  const int64_t all = row_count(c);
  if (all == 0 || of_row > kFarTooMuch * work) return {};
  Context context{};
  const int64_t n = std::clamp<int64_t>(static_cast<int64_t>(work / of_row), 1, std::min(all, kMostRows));
  for (int64_t i = 0; i < n; ++i) context.rows.push_back(i * all / n);
  Perturbed sample{context_case(c, context), {}};
  std::vector<std::byte> storage;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].name.empty()) {
      sample.inputs.emplace_back();
      continue;
    }
    const TensorSpec& spec = c.pass->inputs[i];
    Tensor rows(inputs[i].name, inputs[i].dtype, shape_of(sample.c, spec));
    const std::byte* from = gather(c, context, inputs[i], spec, 0, storage);
    std::copy(from, from + rows.bytes.size(), rows.bytes.data());
    sample.inputs.push_back(std::move(rows));
  }
  return sample;
}

std::vector<std::vector<std::byte>> emulated(const Case& c, const std::vector<const Tensor*>& inputs, const Plan& plan,
                                             unsigned threads) {
  Values values;
  for (const OutputSpec& spec : c.pass->outputs) {
    values.emplace_back(is_present(c, spec.tensor) ? element_count(shape_of(c, spec.tensor)) : 0);
  }
  const Arithmetic arithmetic(plan);
  c.pass->emulation->run({inputs, c.attrs, arithmetic, values, threads});
  std::vector<std::vector<std::byte>> stored;
  for (size_t i = 0; i < values.size(); ++i) {
    const DTypeInfo& type = info(dtype_of(c, c.pass->outputs[i].tensor));
    std::byte* const to = stored.emplace_back(values[i].size() * type.bytes).data();
    constexpr size_t kBlock = 1 << 16;
    parallel_for(threads, static_cast<int64_t>((values[i].size() + kBlock - 1) / kBlock), [&](int64_t block) {
      const size_t first = static_cast<size_t>(block) * kBlock;
      type.encode(values[i].data() + first, to + first * type.bytes, std::min(kBlock, values[i].size() - first));
    });
  }
  return stored;
}

void measure(const Perturbed& of, std::vector<Sensitivity>& found, unsigned threads) {
  using enum Plan::Order;
  const Case& sample = of.c;
  std::vector<const Tensor*> present;
  for (const Tensor& tensor : of.inputs) present.push_back(tensor.name.empty() ? nullptr : &tensor);
  const auto usual = emulated(sample, present, {serial, 0, true}, threads);
  for (const Plan& plan : {Plan{reversed, 0, true}, Plan{split, 2, true}}) {
    const auto other = emulated(sample, present, plan, threads);
    for (size_t i = 0; i < found.size(); ++i) {
      if (found[i].state == Sensitivity::State::not_applicable) continue;
      const DType dtype = dtype_of(sample, sample.pass->outputs[i].tensor);
      const auto elements = static_cast<int64_t>(usual[i].size() / info(dtype).bytes);
      const int64_t changed = compare_bits(dtype, usual[i].data(), other[i].data(), elements, threads).different;
      const bool first = found[i].state != Sensitivity::State::measured;
      found[i].changed = first ? changed : std::min(found[i].changed, changed);
      found[i].elements = elements;
      found[i].state = Sensitivity::State::measured;
    }
  }
}

/// The sensitivity of the outputs of `c`. Calls make_sample only if an output needs it.
std::vector<Sensitivity> measured(const Case& c, unsigned threads,
                                  const std::function<std::optional<Perturbed>()>& make_sample) {
  std::vector<Sensitivity> found(c.pass->outputs.size());
  bool any = false;
  for (size_t i = 0; i < found.size(); ++i) {
    const OutputSpec& spec = c.pass->outputs[i];
    if (!is_present(c, spec.tensor) || !is_per_row(*c.op, spec.tensor) || sum_terms(c, spec) < kFewestTerms ||
        spec.numerics == Numerics::exact) {
      found[i].state = Sensitivity::State::not_applicable;
    } else {
      any = true;
    }
  }
  const auto give_up = [&](const std::string& why) {
    for (Sensitivity& each : found) {
      if (each.state != Sensitivity::State::not_applicable) each = {Sensitivity::State::not_measured, why};
    }
  };
  if (!any) return found;
  if (c.pass->emulation == nullptr) {
    give_up("the pass has no emulation");
    return found;
  }
  try {
    if (const std::optional<Perturbed> sample = make_sample()) {
      measure(*sample, found, threads);
    } else {
      give_up("a row is too much work to emulate");
    }
  } catch (const InputError& e) {  // the shortened sizes contradict each other
    give_up(e.what());
  }
  return found;
}

}  // namespace

double Sensitivity::share() const {
  const double seen = static_cast<double>(changed) - 2 * std::sqrt(static_cast<double>(changed));
  return elements > 0 ? std::max(0.0, seen) / static_cast<double>(elements) : 0;
}

double Sensitivity::unseen() const { return std::pow(1 - share(), static_cast<double>(compared)); }

std::vector<Sensitivity> sensitivity_of(const Case& c, unsigned threads, double work) {
  return measured(c, threads, [&] { return generated_rows(c, threads, work); });
}

std::vector<Sensitivity> sensitivity_of(const Case& c, const std::vector<Tensor>& inputs, unsigned threads,
                                        double work) {
  return measured(c, threads, [&] { return given_rows(c, inputs, work); });
}

int64_t elements_of_rows(const Case& c, const TensorSpec& output) {
  return (row_count(c) - 1) * matrix_view(*c.op, output, shape_of(c, output)).columns;
}

namespace {

bool is_asked(const Sensitivity& each) { return each.state != Sensitivity::State::not_applicable; }

/// `c` with `wanted` rows, or as many as `limits` permit; never fewer than it has.
Case with_more_rows(const Case& c, int64_t wanted, const Limits& limits) {
  wanted = std::min(wanted, kMostRows);
  while (wanted > row_count(c) &&
         !(tensor_bytes(with_rows(c, wanted)) <= limits.bytes && work_of(with_rows(c, wanted)) <= limits.work)) {
    wanted -= std::max<int64_t>(1, wanted / 8);
  }
  return wanted > row_count(c) ? with_rows(c, wanted) : c;
}

/// The number of rows that brings unseen() of every output below its limit; kMostRows if an output has no measured
/// share.
int64_t rows_needed(const Case& c, const std::vector<Sensitivity>& sensitivity) {
  int64_t rows = row_count(c);
  for (size_t i = 0; i < sensitivity.size(); ++i) {
    if (!is_asked(sensitivity[i])) continue;
    const double share = std::min(sensitivity[i].share(), 0.999999);
    if (!(share > 0)) return kMostRows;
    const TensorSpec& spec = c.pass->outputs[i].tensor;
    const auto columns = static_cast<double>(matrix_view(*c.op, spec, shape_of(c, spec)).columns);
    const double needed = std::log(kUnseenLimit) / std::log1p(-share) / columns;
    // Row 0 does not count; one more row makes up for rounding.
    rows = std::max(rows, static_cast<int64_t>(std::min(std::ceil(needed) + 2, static_cast<double>(kMostRows))));
  }
  return rows;
}

/// The highest probability over all outputs that a violation stays unseen if all rows but the first are compared.
double worst_unseen(const Case& c, std::vector<Sensitivity> sensitivity, int64_t one_in = 1) {
  double worst = 0;
  for (size_t i = 0; i < sensitivity.size(); ++i) {
    if (!is_asked(sensitivity[i])) continue;
    sensitivity[i].compared = elements_of_rows(c, c.pass->outputs[i].tensor) / one_in;
    worst = std::max(worst, sensitivity[i].state == Sensitivity::State::measured ? sensitivity[i].unseen() : 1.0);
  }
  return worst;
}

/// Estimates how much a case can prove: elements times the share that changes, which grows as the square root of the
/// terms. The minimum over the outputs.
double promise(const Case& c, const Limits& limits) {
  constexpr int64_t kEnoughTerms = 16;  // sums of a few terms in narrow formats are often exact
  if (row_count(c) == 0 || c.op->row_dims.empty() ||
      (c.input_mode != InputMode::random && c.input_mode != InputMode::peaked))
    return 0;
  // Not every candidate supports carried sums, and a case without them proves as much about rows.
  const auto outputs = c.pass->outputs;
  if (std::any_of(outputs.begin(), outputs.end(), [&](const OutputSpec& o) { return is_carried(c, o.tensor); }))
    return 0;
  const Case widened = with_more_rows(c, kMostRows, limits);
  double least = 0;
  for (const OutputSpec& spec : c.pass->outputs) {
    if (!is_present(c, spec.tensor) || !is_per_row(*c.op, spec.tensor) || sum_terms(c, spec) < kFewestTerms) continue;
    const int64_t terms = sum_terms(c, spec);
    const double own = static_cast<double>(elements_of_rows(widened, spec.tensor)) *
                       std::sqrt(static_cast<double>(terms)) * (terms < kEnoughTerms ? 1e-3 : 1);
    least = least == 0 ? own : std::min(least, own);
  }
  return least;
}

}  // namespace

std::vector<Sensitivity> own_sensitivity_of(const Case& c, unsigned threads) {
  constexpr int64_t kMany = 1 << 17;
  const auto has_many = [&](const OutputSpec& output) {
    return row_count(c) > 0 && is_present(c, output.tensor) && is_per_row(*c.op, output.tensor) &&
           elements_of_rows(c, output.tensor) >= kMany;
  };
  std::vector<Sensitivity> found = sensitivity_of(c, threads);
  if (std::none_of(c.pass->outputs.begin(), c.pass->outputs.end(), has_many)) return found;
  constexpr int64_t kOneIn = 16;  // an axis compares only some of a case's rows
  for (const double work : {3e6, 3e7, kThoroughWork}) {
    if (worst_unseen(c, found, kOneIn) < kUnseenLimit) break;
    found = sensitivity_of(c, threads, work);
  }
  return found;
}

Proof find_proof(std::span<const Case* const> cases, unsigned threads, bool on_gpu) {
  const Limits& limits = on_gpu ? kOnGpu : kOnCpu;
  Proof best;
  double most = -1;
  for (size_t i = 0; i < cases.size(); ++i) {
    if (const double own = promise(*cases[i], limits); own > most) most = own, best.index = i, best.c = *cases[i];
  }
  best.sensitivity = sensitivity_of(best.c, threads);
  if (std::none_of(best.sensitivity.begin(), best.sensitivity.end(), is_asked)) return best;
  Case tried = best.c;
  double unseen = worst_unseen(best.c, best.sensitivity);
  for (const InputMode mode : {tried.input_mode, InputMode::wide}) {
    tried.input_mode = mode;
    // work_of() is rough, so a step that took little time may be followed by a larger one. The limit is long enough for
    // a busy machine, because the result must not depend on the load.
    constexpr std::chrono::seconds kShort{20};
    auto start = std::chrono::steady_clock::now();
    for (const double work : {1e6, 3e7, 5e8}) {
      if (unseen < kUnseenLimit) return best;
      if (work > 1e8 && std::chrono::steady_clock::now() - start > kShort) break;
      start = std::chrono::steady_clock::now();
      const std::vector<Sensitivity> found = sensitivity_of(tried, threads, work);
      const Case widened = with_more_rows(tried, rows_needed(tried, found), limits);
      const double own = worst_unseen(widened, found);
      if (own < unseen) unseen = own, best.c = widened, best.sensitivity = found;
    }
  }
  return best;
}

}  // namespace checkop
