// SPDX-License-Identifier: Apache-2.0
// Gathers the rows of a context's inputs, and compares its output rows with those of the case.
#include "run/invariance/rows.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "case/rank_parts.hpp"

namespace checkop {
namespace {

/// The bits of a disturbing element.
uint64_t pattern_of(DType dtype, Disturbance disturbance) {
  if (disturbance == Disturbance::nan) return poison_of(dtype).guard;
  const double infinity = std::numeric_limits<double>::infinity();
  uint64_t bits = 0;
  if (disturbance == Disturbance::zeros) return bits;
  info(dtype).encode(&infinity, reinterpret_cast<std::byte*>(&bits), 1);
  return disturbance == Disturbance::huge ? bits - 1 : bits;  // below infinity is the largest finite number
}

void fill_elements(std::byte* to, size_t width, uint64_t pattern, int64_t count) {
  if (count == 0) return;
  const size_t bytes = static_cast<size_t>(count) * width;
  std::memcpy(to, &pattern, width);
  for (size_t done = width; done < bytes; done *= 2) std::memcpy(to + done, to, std::min(done, bytes - done));
}

/// A copy of a tensor with `padding` elements of `pattern` behind each run of `run` elements.
std::vector<std::byte> spread(const std::byte* from, int64_t count, int64_t run, int64_t padding, size_t width,
                              uint64_t pattern) {
  std::vector<std::byte> to(static_cast<size_t>(count / run * (run + padding)) * width);
  for (int64_t i = 0; i < count / run; ++i) {
    std::byte* const at = to.data() + static_cast<size_t>(i * (run + padding)) * width;
    std::memcpy(at, from + static_cast<size_t>(i * run) * width, static_cast<size_t>(run) * width);
    fill_elements(at + static_cast<size_t>(run) * width, width, pattern, padding);
  }
  return to;
}

/// For each row of the launch, its row of the input; negative if it only holds disturbing elements.
std::vector<int64_t> sources_of(const Context& context, DType dtype) {
  std::vector<int64_t> rows = context.rows;
  if (context.disturbance != Disturbance::none && info(dtype).is_float) return rows;
  for (int64_t& row : rows) row = row < 0 ? ~row : row;
  return rows;
}

bool is_a_run(const std::vector<int64_t>& rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] < 0 || rows[i] != rows.front() + static_cast<int64_t>(i)) return false;
  }
  return true;
}

}  // namespace

namespace {

/// Gives the content of `from.dtype` the values and the layout of the context's arrangement.
const std::byte* arranged(const Case& launched, const Context& context, const Tensor& from, const TensorSpec& spec,
                          const std::byte* content, std::vector<std::byte>& storage) {
  const Placement placement = placement_of(launched, spec, {0, 0, context.arrangement});
  if (is_expanded(context.arrangement)) {
    const std::byte* const end = content + static_cast<size_t>(element_count(placement.shape)) * info(from.dtype).bytes;
    std::vector<std::byte> equal(content, end);
    equalise(placement, equal.data());
    storage = std::move(equal);
    content = storage.data();
  }
  // Ranks arrange their own parts.
  if (!context.is_contiguous && !is_tensor_parallel(launched)) {
    storage = arrange(placement, from.dtype, content);
    content = storage.data();
  }
  return content;
}

}  // namespace

const std::byte* gather(const Case& c, const Context& context, const Tensor& from, const TensorSpec& spec,
                        int64_t padding, std::vector<std::byte>& storage) {
  const size_t width = info(from.dtype).bytes;
  const std::byte* content = from.bytes.data();
  int64_t count = from.count();
  if (is_per_row(*c.op, spec)) {
    const int64_t columns = matrix_view(*c.op, spec, from.shape).columns;
    const size_t row_bytes = static_cast<size_t>(columns) * width;
    const std::vector<int64_t> rows = sources_of(context, from.dtype);
    count = std::ssize(rows) * columns;
    if (is_a_run(rows)) {
      content += static_cast<size_t>(rows.front()) * row_bytes;
    } else {
      storage.resize(rows.size() * row_bytes);
      for (size_t k = 0; k < rows.size(); ++k) {
        std::byte* const to = storage.data() + k * row_bytes;
        if (rows[k] < 0) {
          fill_elements(to, width, pattern_of(from.dtype, context.disturbance), columns);
        } else {
          std::memcpy(to, from.bytes.data() + static_cast<size_t>(rows[k]) * row_bytes, row_bytes);
        }
      }
      content = storage.data();
    }
  }
  if (padding > 0) {
    // The last dimension may be a row dimension, so its extent depends on the launch.
    const int64_t run = shape_of(context_case(c, context), spec).back();
    storage = spread(content, count, run, padding, width, context.zeros_between ? 0 : poison_of(from.dtype).guard);
    content = storage.data();
  }
  if (context.arrangement == Arrangement::contiguous) return content;
  return arranged(context_case(c, context), context, from, spec, content, storage);
}

namespace {

bool is_arranged(const Context& context) { return context.arrangement != Arrangement::contiguous; }

/// Like gather_there(), without padding.
void take_rows(Device& device, const Case& c, const Context& context, GuardedBuffer& from, const TensorSpec& spec,
               GuardedBuffer& to) {
  if (!is_per_row(*c.op, spec)) return to.copy_from(from);
  const std::vector<int64_t> rows = sources_of(context, from.dtype());
  const size_t row_bytes = from.bytes() / static_cast<size_t>(row_count(c));
  if (is_a_run(rows)) {
    return device.copy(to.data(), from.data() + static_cast<size_t>(rows.front()) * row_bytes, to.bytes());
  }
  if (std::any_of(rows.begin(), rows.end(), [](int64_t row) { return row < 0; })) {
    to.poison(pattern_of(from.dtype(), context.disturbance));
  }
  device.copy_rows(to.data(), row_bytes, from.data(), row_bytes, rows);
}

/// Fills `to` like gather(), from `from`, the whole input on the device. Enqueues work on the stream.
void gather_there(Device& device, const Case& c, const Context& context, GuardedBuffer& from, const TensorSpec& spec,
                  int64_t padding, GuardedBuffer& to) {
  if (padding == 0) return take_rows(device, c, context, from, spec, to);
  const int64_t run = shape_of(context_case(c, context), spec).back();
  std::vector<int64_t> runs(static_cast<size_t>(to.count() / (run + padding)));
  std::iota(runs.begin(), runs.end(), 0);
  GuardedBuffer rows(device, from.dtype(), std::ssize(runs) * run, "rows that will lie apart");
  take_rows(device, c, context, from, spec, rows);
  to.poison(context.zeros_between ? 0 : poison_of(from.dtype()).guard);
  const size_t width = info(from.dtype()).bytes;
  device.copy_rows(to.data(), static_cast<size_t>(run + padding) * width, rows.data(), static_cast<size_t>(run) * width,
                   runs);
}

}  // namespace

ContextInputs::ContextInputs(Device& device, const Case& c, const std::vector<Tensor>& host,
                             std::vector<BufferPtr> full)
    : device_(device), c_(c), host_(host), kept_(std::move(full)) {
  size_t bytes = 0;
  for (size_t i = 0; i < kept_.size(); ++i) {
    if (!kept_[i] || !is_per_row(*c.op, c.pass->inputs[i])) continue;
    bytes += kept_[i]->bytes();
    if (!is_small(device, bytes)) kept_[i].reset();
  }
}

std::vector<BufferPtr> ContextInputs::add_to(Stage& stage, const Context& context,
                                             const std::vector<BufferPtr>& carries, bool is_looked_at) const {
  std::vector<BufferPtr> own(host_.size());
  const auto moves = [&](const TensorSpec& spec) {
    if (context.offset > 0 || context.row_padding > 0) return true;
    const Case& c = stage.stage_case();
    return placement_of(c, spec, {0, 0, context.arrangement}) != placement_of(c, spec, {});
  };
  for (size_t i = 0; i < host_.size(); ++i) {
    const TensorSpec& spec = c_.pass->inputs[i];
    if (!carries.empty() && carries[i]) {
      stage.inputs.push_back(carries[i]);
    } else if (!is_present(c_, spec) || (!is_per_row(*c_.op, spec) && !moves(spec))) {
      stage.inputs.push_back(kept_[i]);
    } else {
      stage.inputs.push_back(own[i] = stage.make_buffer("input", spec));
      fill(stage, context, i, *own[i]);
      if (is_looked_at) own[i]->note_given();
    }
  }
  return own;
}

std::vector<BufferPtr> ContextInputs::add_rearranged(Stage& stage, const std::vector<Tensor>& inputs,
                                                     bool is_looked_at) const {
  std::vector<BufferPtr> own(host_.size());
  for (size_t i = 0; i < host_.size(); ++i) {
    const TensorSpec& spec = c_.pass->inputs[i];
    const Tensor& from = rearranged(inputs, i);
    if (!is_present(c_, spec) || (&from == &host_[i] && kept_[i])) {
      stage.inputs.push_back(kept_[i]);
      continue;
    }
    stage.inputs.push_back(own[i] = stage.make_buffer("input", spec));
    own[i]->upload(from.bytes.data());
    if (is_looked_at) own[i]->note_given();
  }
  return own;
}

void ContextInputs::note_modified(const std::vector<BufferPtr>& own, const std::vector<Tensor>& inputs,
                                  std::vector<std::string>& modified) const {
  note_modified_inputs(
      own, [&](size_t i) { return rearranged(inputs, i).bytes.data(); }, host_, modified);
}

void ContextInputs::fill(const Stage& stage, const Context& context, size_t i, GuardedBuffer& to) const {
  const TensorSpec& spec = c_.pass->inputs[i];
  if (kept_[i] && !is_arranged(context))
    return gather_there(device_, c_, context, *kept_[i], spec, stage.padding_of(spec), to);
  std::vector<std::byte> storage;
  device_.upload(to.data(), gather(c_, context, host_[i], spec, stage.padding_of(spec), storage), to.bytes());
}

void ContextInputs::note_modified(const Stage& stage, const Context& context, const std::vector<BufferPtr>& own,
                                  std::vector<std::string>& modified) const {
  std::vector<std::byte> storage;
  const auto given = [&](size_t i) {
    const TensorSpec& spec = c_.pass->inputs[i];
    return gather(c_, context, host_[i], spec, stage.padding_of(spec), storage);
  };
  note_modified_inputs(own, given, host_, modified);
  stage.check_rank_inputs(modified);
}

void ContextInputs::note_modified(std::vector<std::string>& modified) const {
  note_modified_inputs(
      kept_, [this](size_t i) { return host_[i].bytes.data(); }, host_, modified);
}

void RowsCompared::add(const std::byte* block, int64_t first, int64_t n) {
  const size_t width = info(reference_.dtype).bytes;
  for (int64_t done = 0; done < n;) {
    const int64_t at = (first + done) % columns_, run = std::min(columns_ - at, n - done);
    const int64_t row = context_.rows[static_cast<size_t>((first + done) / columns_)];
    if (row >= 0) {
      const std::byte* expected =
          reference_.bytes.data() + static_cast<size_t>((row - first_row_) * columns_ + at) * width;
      take(row, at, compare_bits(reference_.dtype, expected, block + static_cast<size_t>(done) * width, run));
    }
    done += run;
  }
}

void RowsCompared::take(int64_t row, int64_t at, const BitDifference& part) {
  if (row == 0 && is_of_rows(context_.axis)) {
    found_.row_zero_different += part.different;
    return;
  }
  BitDifference& total = found_.bits;
  const int64_t index = row * columns_ + at + part.first_index;
  if (part.different > 0 && (total.different == 0 || index < total.first_index)) {
    total.first_index = index, total.a_bits = part.a_bits, total.b_bits = part.b_bits;
  }
  total.compared += part.compared;
  total.different += part.different;
}

}  // namespace checkop
