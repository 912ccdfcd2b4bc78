// SPDX-License-Identifier: Apache-2.0
// Runs contexts on a device: gathers input rows, launches, and compares output rows.
#include "run/invariance/run_contexts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "base/random.hpp"
#include "case/inputs.hpp"
#include "run/invariance/bisect.hpp"
#include "run/invariance/rows.hpp"

namespace checkop {
namespace {

/// The index of the input whose sums output `output` carries on.
size_t carry_of(const Case& c, size_t output) {
  const auto inputs = c.pass->inputs;
  const auto is_it = [&](const TensorSpec& spec) { return spec.name == c.pass->outputs[output].tensor.carry; };
  return static_cast<size_t>(std::find_if(inputs.begin(), inputs.end(), is_it) - inputs.begin());
}

class Contexts {
 public:
  Contexts(Device& device, const checkop_kernel& kernel, const Case& c, const std::vector<Tensor>& inputs,
           const FirstOutputs& first, const RunChecks& checks, Stage& full, RunResult& result)
      : device_(device),
        kernel_(kernel),
        c_(c),
        inputs_(inputs),
        reference_(&first.host),
        checks_(checks),
        full_(full),
        result_(result),
        contexts_(contexts_of(c, device.info(), checks)) {
    for (size_t i = 0; i < first.host.size(); ++i) references_[&first.host[i]] = first.there[i];
  }

  void run() {
    for (const Context& context : contexts_) enter(context);
    each([this](const Context& context) { return is_in_place(context); }, [&](size_t k) { run_in_place(k); });
    if (contexts_.empty()) return;
    kept_.emplace(device_, c_, inputs_, full_.release_inputs());
    each([this](const Context& context) { return !is_in_place(context); }, [&](size_t k) { run_apart(k); });
    compare_beside_boundaries();
    bisect();
    if (checks_.memory) kept_->note_modified(result_.modified_inputs);
  }

 private:
  void enter(const Context& context) {
    result_.contexts.push_back({context.axis, context.what, true, "", row_count(context_case(c_, context))});
    for (OutputRun& output : result_.outputs) output.contexts.emplace_back();
  }

  template <class Which, class Body>
  void each(const Which& which, const Body& body) {
    for (size_t k = 0; k < contexts_.size(); ++k) {
      if (which(contexts_[k])) attempt(k, body);
    }
  }

  template <class Body>
  void attempt(size_t k, const Body& body) {
    try {
      body(k);
    } catch (const Stopped& stopped) {
      if (stopped.status != RunStatus::unsupported) throw;
      // For example, a candidate may require a multiple of some number of rows. Then the context proves nothing.
      result_.contexts[k].supported = false;
      result_.contexts[k].message = stopped.message;
    }
  }

  /// Whether the context can use the buffers of the full batch. after_shapes runs last, when these are freed.
  bool is_in_place(const Context& context) const {
    return context.sums && std::ssize(context.rows) == row_count(c_) && context.offset == 0 &&
           context.row_padding == 0 && context.arrangement == Arrangement::contiguous && context.ranks == 0 &&
           context.piece_rows == 0 && context.axis != Axis::after_shapes && context.rearrangement == nullptr;
  }

  static InitialState found_by(const Context& context) {
    return {static_cast<uint64_t>(context.outputs_before), context.workspace_before, context.mode, next_draw()};
  }

  std::string suffix(const Context& context) const {
    return fmt::format(" ({}: {})", to_string(context.axis), context.what);
  }

  void run_in_place(size_t k) {
    const Context& context = contexts_[k];
    if (context.workspace_extra > 0) full_.make_workspace(context.workspace_extra);
    result_.contexts[k].message = full_.launch(found_by(context));
    compare_launches(k, full_, *reference_, 0);
    if (context.axis == Axis::first_call && is_broken(k)) {
      // Every later launch would differ from the first too, so these are compared with the second.
      warm_ = download(full_);
      reference_ = &warm_;
    }
    note_rank_differences(full_, result_);
    if (checks_.memory) {
      full_.check_guards(result_.guard_violations);
      note_modified_inputs(full_, inputs_, result_.modified_inputs);
    }
    if (context.workspace_extra > 0) full_.make_workspace(0);
  }

  bool is_broken(size_t k) const {
    return std::any_of(result_.outputs.begin(), result_.outputs.end(),
                       [&](const OutputRun& output) { return output.contexts[k].bits.different > 0; });
  }

  static std::vector<Tensor> download(const Stage& stage) { return download(stage, stage.outputs); }
  static std::vector<Tensor> download(const Stage& stage, const std::vector<BufferPtr>& from) {
    std::vector<Tensor> outputs = make_outputs(stage.stage_case());
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (from[i]) from[i]->download(outputs[i].bytes.data());
    }
    return outputs;
  }

  /// Compares the stage's launch with `reference`; with several launches, each further launch with the first.
  void compare_launches(size_t k, Stage& stage, const std::vector<Tensor>& reference, int64_t first_row) {
    const Context& context = contexts_[k];
    if (context.launches == 1) return compare(k, stage, reference, first_row);
    const std::vector<BufferPtr> copies = stage.copy_outputs();
    const auto all_of = [&](const auto& holds) {
      for (size_t i = 0; i < copies.size(); ++i) {
        if (stage.outputs[i] && !holds(i)) return false;
      }
      return true;
    };
    const bool complete = all_of([&](size_t i) { return copies[i] != nullptr; });
    std::vector<Tensor> first;
    if (!complete) first = download(stage);
    for (int launch = 1; launch < context.launches; ++launch) {
      stage.launch(found_by(context));
      if (complete && all_of([&](size_t i) { return stage.outputs[i]->equals(*copies[i]); })) {
        for (size_t i = 0; i < copies.size(); ++i) note_equal(k, stage, i);
        continue;
      }
      if (first.empty()) first = download(stage, copies);
      compare(k, stage, first, 0);
    }
  }

  void compare(size_t k, Stage& stage, const std::vector<Tensor>& reference, int64_t first_row) {
    const Context& context = contexts_[k];
    for (size_t i = 0; i < reference.size(); ++i) {
      if (!stage.outputs[i]) continue;
      const TensorSpec& spec = c_.pass->outputs[i].tensor;
      if (context.piece_rows > 0 ? !is_carried(c_, spec) : !is_per_row(*c_.op, spec) && !context.sums) continue;
      if (equal_on_device(context, stage, i, reference[i], first_row)) {
        note_equal(k, stage, i);
        continue;
      }
      bring_back(reference[i]);
      ContextBits& found = result_.outputs[i].contexts[k];
      if (is_per_row(*c_.op, spec)) {
        RowsCompared rows(context, reference[i], columns_of(i, reference[i]), first_row, found);
        read(stage, spec, *stage.outputs[i],
             [&](const std::byte* block, int64_t first, int64_t n) { rows.add(block, first, n); });
      } else {
        const BitDifference part = stage.outputs[i]->difference_from(reference[i].bytes.data());
        const int64_t compared = found.bits.compared + part.compared;
        if (found.bits.different == 0) found.bits = part;
        found.bits.compared = compared;
      }
    }
  }

  int64_t columns_of(size_t i, const Tensor& output) const {
    return matrix_view(*c_.op, c_.pass->outputs[i].tensor, output.shape).columns;
  }

  /// Records that everything that context k compares of output i is equal.
  void note_equal(size_t k, const Stage& stage, size_t i) {
    if (!stage.outputs[i]) return;
    const Context& context = contexts_[k];
    const TensorSpec& spec = c_.pass->outputs[i].tensor;
    int64_t& compared = result_.outputs[i].contexts[k].bits.compared;
    if (!is_per_row(*c_.op, spec)) {
      compared += context.sums ? stage.outputs[i]->count() : 0;
    } else {
      compared += matrix_view(*c_.op, spec, shape_of(c_, spec)).columns * rows_that_count(context);
    }
  }

  /// Whether the compared part of output i has the bits of `reference`, compared on the device. Also returns false if
  /// it can't be compared there: rows have padding, or the reference is not kept on the device.
  bool equal_on_device(const Context& context, const Stage& stage, size_t i, const Tensor& reference,
                       int64_t first_row) {
    if (context.launches > 1 || stage.padding_of(c_.pass->outputs[i].tensor) > 0) return false;
    const BufferPtr there = on_device(reference);
    if (!there) return false;
    if (!is_per_row(*c_.op, c_.pass->outputs[i].tensor)) return stage.outputs[i]->equals(*there);
    std::vector<int64_t> rows = context.rows;
    for (int64_t& row : rows) row -= row < 0 ? 0 : first_row;
    const size_t row_bytes = static_cast<size_t>(columns_of(i, reference)) * info(reference.dtype).bytes;
    return device_.rows_equal(stage.outputs[i]->data(), there->data(), row_bytes, rows);
  }

  /// `reference` on the device, or nullptr. Uploads it if many contexts will use it.
  BufferPtr on_device(const Tensor& reference) {
    const auto known = references_.find(&reference);
    if (known != references_.end()) return known->second;
    if (!checks_.plan.all || reference_ != &warm_ || !is_small(device_, reference.bytes.size())) return nullptr;
    auto there = std::make_shared<GuardedBuffer>(device_, reference.dtype, reference.count(), "what rows must equal");
    there->upload(reference.bytes.data());
    return references_[&reference] = there;
  }

  /// Calls body(block, first element, elements) for the output without the padding between rows. Reports padding that
  /// changed.
  template <class Body>
  void read(const Stage& stage, const TensorSpec& spec, GuardedBuffer& output, const Body& body) {
    const int64_t padding = stage.padding_of(spec);
    if (padding == 0) return output.for_each_block(body);
    const size_t width = info(output.dtype()).bytes;
    const int64_t run = shape_of(stage.stage_case(), spec).back(), runs = output.count() / (run + padding);
    std::vector<std::byte> all(output.bytes());
    output.download(all.data());
    int64_t written = 0;
    for (int64_t i = 0; i < runs; ++i) {
      const std::byte* const at = all.data() + static_cast<size_t>(i * (run + padding)) * width;
      for (int64_t p = run; p < run + padding; ++p) {
        written += load_bits(output.dtype(), at, p) == stage.poison_before(output.dtype()) ? 0 : 1;
      }
      body(at, i * run, run);
    }
    if (written > 0 && checks_.memory) {
      result_.guard_violations.push_back(
          fmt::format("{}: {} elements changed between its rows", output.what(), written));
    }
  }

  void run_apart(size_t k) {
    const Context& context = contexts_[k];
    if (context.piece_rows > 0) return run_pieces(k);
    if (context.rearrangement != nullptr) return run_rearranged(k);
    const std::vector<Tensor>& reference = context.has_twin() ? twin_of(context) : *reference_;
    launch(context, [&](Stage& stage, const std::string& message) {
      result_.contexts[k].message = message;
      compare_launches(k, stage, reference, context.twin.first);
    });
  }

  /// The rows of an output with these dimensions: those of the most leading dimensions.
  static auto rows_of(const Rearranged& other, const TensorSpec& spec) {
    auto longest = other.rows.end();
    for (auto each = other.rows.begin(); each != other.rows.end(); ++each) {
      const bool leads = (std::string(spec.dims) + " ").starts_with(each->first + " ");
      if (leads && (longest == other.rows.end() || each->first.size() > longest->first.size())) longest = each;
    }
    return longest;
  }
  /// Elements of a row of `output`, where rows count along the leading dimensions `dims`.
  static int64_t columns_behind(std::string_view dims, const Tensor& output) {
    const auto leading = static_cast<std::ptrdiff_t>(split_dims(dims).size());
    return element_count(Shape(output.shape.begin() + leading, output.shape.end()));
  }

  /// Launches the inputs of a rearrangement. Compares nothing where it changes none.
  void run_rearranged(size_t k) {
    const Context& context = contexts_[k];
    std::vector<const Tensor*> given;
    for (const Tensor& input : inputs_) given.push_back(input.name.empty() ? nullptr : &input);
    const auto uniform = [&](std::string_view name, uint64_t i) {
      return Stream::derive(c_.seed, c_.op->name, name).uniform(i);
    };
    const std::optional<Rearranged> other = context.rearrangement->make({*c_.pass, given, c_.attrs, uniform});
    if (!other) return;
    Case launched = c_;
    for (const auto& [dim, extent] : other->dims) launched.dims.find(dim)->second = extent;
    Stage stage(device_, kernel_, launched, suffix(context));
    stage.rank_limit = checks_.rank_limit;
    const std::vector<BufferPtr> own = kept_->add_rearranged(stage, other->inputs, checks_.memory);
    stage.make_outputs_and_workspace();
    result_.contexts[k].message = stage.launch(found_by(context));
    for (size_t i = 0; i < reference_->size(); ++i) {
      const TensorSpec& spec = c_.pass->outputs[i].tensor;
      if (!stage.outputs[i] || !is_rearranged(*context.rearrangement, spec)) continue;
      Context mapped = context;
      int64_t columns = columns_of(i, (*reference_)[i]);
      if (const auto found = rows_of(*other, spec); found != other->rows.end()) {
        mapped.rows = found->second;
        columns = columns_behind(found->first, (*reference_)[i]);
      } else {
        mapped.rows.resize(static_cast<size_t>((*reference_)[i].shape.front()));
        std::iota(mapped.rows.begin(), mapped.rows.end(), 0);
      }
      RowsCompared rows(mapped, (*reference_)[i], columns, 0, result_.outputs[i].contexts[k]);
      stage.outputs[i]->for_each_block(
          [&](const std::byte* block, int64_t first, int64_t n) { rows.add(block, first, n); });
    }
    if (!checks_.memory) return;
    stage.check_guards(result_.guard_violations);
    kept_->note_modified(own, other->inputs, result_.modified_inputs);
  }

  /// Launches the pieces; each takes the carried sums of the piece before it.
  void run_pieces(size_t k) {
    std::vector<BufferPtr> carries(inputs_.size());
    const std::vector<Context> pieces = pieces_of(contexts_[k]);
    for (const Context& piece : pieces) {
      const auto look = [&](Stage& stage, const std::string& message) {
        result_.contexts[k].message = message;
        for (size_t i = 0; i < stage.outputs.size(); ++i) {
          if (is_carried(c_, c_.pass->outputs[i].tensor)) carries[carry_of(c_, i)] = stage.outputs[i];
        }
        if (&piece == &pieces.back()) compare(k, stage, *reference_, 0);
      };
      launch(piece, look, carries);
    }
  }

  /// The outputs of a plain launch of the context's twin, with the values of its arrangement.
  const std::vector<Tensor>& twin_of(const Context& context) {
    const Twin key{context.twin, is_expanded(context.arrangement) ? context.arrangement : Arrangement::contiguous};
    const auto known = twins_.find(key);
    if (known != twins_.end()) return known->second;
    Context plain;
    plain.axis = Axis::batch, plain.what = fmt::format("rows [{}, {})", context.twin.first, context.twin.second);
    for (int64_t row = context.twin.first; row < context.twin.second; ++row) plain.rows.push_back(row);
    if (is_expanded(context.arrangement)) {
      plain.axis = context.axis, plain.what = fmt::format("contiguous copies of {}", context.what);
      plain.arrangement = context.arrangement, plain.is_contiguous = true, plain.outer = context.outer;
    }
    launch(plain, [&](Stage& stage, const std::string&) {
      std::vector<Tensor>& twin = twins_.emplace(key, make_outputs(stage.stage_case())).first->second;
      for (size_t i = 0; i < twin.size(); ++i) {
        if (!stage.outputs[i]) continue;
        references_[&twin[i]] = stage.outputs[i];
        not_here_[&twin[i]] = &twin[i];
        if (!is_small(device_, twin[i].bytes.size())) bring_back(twin[i]), references_.erase(&twin[i]);
      }
    });
    return twins_.at(key);
  }

  /// Downloads a twin's output, if it is only on the device.
  void bring_back(const Tensor& reference) {
    const auto found = not_here_.find(&reference);
    if (found == not_here_.end()) return;
    references_.at(&reference)->download(found->second->bytes.data());
    not_here_.erase(found);
  }

  /// `carries` replaces inputs; nullptr leaves the case's own input.
  template <class Look>
  void launch(const Context& context, const Look& look, const std::vector<BufferPtr>& carries = {}) {
    Stage stage(device_, kernel_, context_case(c_, context), suffix(context),
                {context.offset, context.row_padding, context.arrangement_in_memory()});
    stage.rank_limit = checks_.rank_limit;
    const std::vector<BufferPtr> own = kept_->add_to(stage, context, carries, checks_.memory);
    stage.make_outputs_and_workspace();
    if (context.workspace_extra > 0) stage.make_workspace(context.workspace_extra);
    look(stage, stage.launch(found_by(context)));
    note_rank_differences(stage, result_);
    if (!checks_.memory) return;
    stage.check_guards(result_.guard_violations);
    kept_->note_modified(stage, context, own, result_.modified_inputs);
  }

  /// Where the candidate reports another variant from some number of rows on, launches with the numbers next to that
  /// boundary.
  void compare_beside_boundaries() {
    if (!checks_.plan.all) return;
    std::map<int64_t, std::string> variants{{row_count(c_), result_.message}};
    bool asked = false;
    for (size_t k = 0; k < contexts_.size(); ++k) {
      const Context& context = contexts_[k];
      const ContextRun& run = result_.contexts[k];
      if (context.axis != Axis::batch) continue;
      asked = true;
      if (run.supported) variants[run.rows] = run.message;
    }
    double left = kMostForBoundaries;
    const auto variant_at = [&](int64_t rows) -> std::optional<std::string> {
      Context context = first_rows(rows);
      left -= cost_of(c_, device_.info(), context);
      if (left < 0) return {};
      contexts_.push_back(context);
      enter(context);
      attempt(contexts_.size() - 1, [&](size_t k) { run_apart(k); });
      if (!result_.contexts.back().supported) return {};
      return result_.contexts.back().message;
    };
    if (asked) find_boundaries(variants, variant_at);
  }

  /// If an output's rows depend on the number of rows, finds the smallest number that shows it.
  void bisect() {
    for (size_t i = 0; i < result_.outputs.size(); ++i) {
      const std::vector<ContextBits>& found = result_.outputs[i].contexts;
      const int64_t columns = found.empty() || !is_per_row(*c_.op, c_.pass->outputs[i].tensor)
                                  ? 0
                                  : matrix_view(*c_.op, c_.pass->outputs[i].tensor, make_shape(i)).columns;
      for (size_t k = 0; k < found.size() && columns > 0; ++k) {
        const Axis axis = contexts_[k].axis;
        if ((axis != Axis::batch && axis != Axis::chunks) || found[k].bits.different == 0) continue;
        try {
          result_.outputs[i].smallest_rows = smallest_rows(i, found[k].bits.first_index / columns);
        } catch (const Stopped& stopped) {
          if (stopped.status != RunStatus::unsupported) throw;  // the candidate does not support every number of rows
        }
        break;
      }
    }
  }

  Shape make_shape(size_t i) const { return shape_of(c_, c_.pass->outputs[i].tensor); }

  /// The smallest number of rows for which `row`, as the first of them, differs from the single-row result in output
  /// `i`.
  int64_t smallest_rows(size_t i, int64_t row) {
    const std::vector<std::byte> alone = row_among(i, row, 1);
    return smallest_that_differs(row_count(c_), [&](int64_t rows) { return row_among(i, row, rows) != alone; });
  }

  /// Row `row` of output `i`, launched as the first of `count` rows.
  std::vector<std::byte> row_among(size_t i, int64_t row, int64_t count) {
    const int64_t n = row_count(c_);
    Context context;
    context.axis = Axis::batch, context.what = fmt::format("{} rows from row {} on", count, row);
    for (int64_t k = 0; k < count; ++k) context.rows.push_back((row + k) % n);
    std::vector<std::byte> bytes;
    launch(context, [&](Stage& stage, const std::string&) {
      const std::vector<Tensor> outputs = download(stage);
      bytes.assign(outputs[i].bytes.data(),
                   outputs[i].bytes.data() + outputs[i].bytes.size() / static_cast<size_t>(count));
    });
    return bytes;
  }

  Device& device_;
  const checkop_kernel& kernel_;
  const Case& c_;
  const std::vector<Tensor>& inputs_;
  const std::vector<Tensor>* reference_;
  const RunChecks& checks_;
  Stage& full_;
  RunResult& result_;
  std::vector<Context> contexts_;
  std::optional<ContextInputs> kept_;  ///< set when the full batch's stage no longer needs its inputs
  std::vector<Tensor> warm_;
  std::map<const Tensor*, BufferPtr> references_;  ///< references on the device; nullptr: too large
  using Twin = std::pair<std::pair<int64_t, int64_t>, Arrangement>;
  std::map<Twin, std::vector<Tensor>> twins_;
  std::map<const Tensor*, Tensor*> not_here_;  ///< outputs of twins that were not downloaded yet
};

}  // namespace

void run_contexts(Device& device, const checkop_kernel& kernel, const Case& c, const std::vector<Tensor>& inputs,
                  const FirstOutputs& first, const RunChecks& checks, Stage& full, RunResult& result) {
  Contexts(device, kernel, c, inputs, first, checks, full, result).run();
}

}  // namespace checkop
