// SPDX-License-Identifier: Apache-2.0
// Builds the call that a candidate gets, interprets its status, and says what it should not have changed.
#include "run/stage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <new>
#include <utility>

#include "base/clock.hpp"
#include "case/rank_parts.hpp"
#include "run/plugin_host.hpp"
#include "run/rank_group.hpp"

namespace checkop {
namespace {

constexpr size_t kMessageBytes = 512;

constexpr bool dtypes_have_their_codes() {
  constexpr std::array kCodes{CHECKOP_F64, CHECKOP_F32,  CHECKOP_F16,  CHECKOP_BF16, CHECKOP_I64,   CHECKOP_I32,
                              CHECKOP_U8,  CHECKOP_E4M3, CHECKOP_E5M2, CHECKOP_E8M0, CHECKOP_E2M1X2};
  for (size_t i = 0; i < kDTypes.size(); ++i)
    if (static_cast<int>(kDTypes[i]) != static_cast<int>(kCodes.at(i))) return false;
  return kCodes.size() == kDTypes.size();
}
static_assert(dtypes_have_their_codes(), "DType has the numbers that check_operator.h gives to kernels");

uint64_t pattern_of(const InitialState& initial, DType dtype) {
  return initial.outputs < 2 ? drawn_poison(dtype, initial.outputs, initial.draw) : 0;
}

}  // namespace

/// The structs that a candidate gets. Each launch makes new ones, so a candidate that changes shapes, strides or
/// attributes can't change the runner's own.
class Call {
 public:
  Call(const Stage& stage, Device& device, GuardedBuffer* workspace, const checkop_kernel& kernel,
       checkop_host_comm* host_comm = nullptr, void* comm = nullptr) {
    const Case& c = stage.stage_case();
    for (size_t i = 0; i < stage.inputs.size(); ++i) add(inputs_, stage, c.pass->inputs[i], stage.inputs[i].get());
    for (size_t i = 0; i < stage.outputs.size(); ++i) {
      add(outputs_, stage, c.pass->outputs[i].tensor, stage.outputs[i].get());
    }
    for (const AttrSpec& spec : c.op->attrs) names_.push_back(std::make_unique<std::string>(spec.name));
    for (size_t i = 0; i < names_.size(); ++i) attrs_.push_back({names_[i]->c_str(), c.attrs[i]});
    call_.struct_size = sizeof(call_);
    call_.n_inputs = static_cast<int32_t>(inputs_.size());
    call_.n_outputs = static_cast<int32_t>(outputs_.size());
    call_.n_attrs = static_cast<int32_t>(attrs_.size());
    call_.inputs = inputs_.data();
    call_.outputs = outputs_.data();
    call_.attrs = attrs_.data();
    call_.workspace = workspace == nullptr ? nullptr : workspace->data();
    call_.workspace_bytes = workspace == nullptr ? 0 : workspace->bytes();
    call_.stream = device.stream();
    const RankPart place = stage.place().value_or(RankPart());
    call_.rank = place.rank, call_.world_size = place.world_size;
    call_.shard_begin = place.begin, call_.shard_end = place.end, call_.shard_total = place.total;
    call_.comm = comm;
    call_.host_comm = host_comm;
    call_.message = message_;
    call_.message_bytes = kMessageBytes;
    call_.kernel = &kernel;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  const checkop_call* get() const { return &call_; }
  /// message_ is one byte longer than the candidate was told, so that a text without a NUL is terminated.
  std::string message() const { return message_; }

 private:
  struct Extents {
    Shape shape, strides;
  };

  void add(std::vector<checkop_tensor>& tensors, const Stage& stage, const TensorSpec& spec, GuardedBuffer* buffer) {
    const Case& c = stage.stage_case();
    auto extents = std::make_unique<Extents>();
    DType dtype = dtype_of(c, spec);
    std::byte* data = nullptr;
    if (buffer != nullptr) {
      Placement placement = stage.placement_of(spec);
      dtype = placement.dtype;
      data = buffer->data() + static_cast<size_t>(placement.first) * info(dtype).bytes;
      *extents = {std::move(placement.shape), std::move(placement.strides)};
    }
    tensors.push_back({data, static_cast<int32_t>(dtype), static_cast<int32_t>(extents->shape.size()),
                       extents->shape.data(), extents->strides.data()});
    extents_.push_back(std::move(extents));
  }

  std::vector<std::unique_ptr<Extents>> extents_;
  std::vector<std::unique_ptr<std::string>> names_;
  std::vector<checkop_tensor> inputs_, outputs_;
  std::vector<checkop_attr> attrs_;
  char message_[kMessageBytes + 1] = {};
  checkop_call call_{};
};

namespace {

/// Calls the candidate. An exception that it lets escape becomes Stopped.
template <class Body>
auto guarded_call(std::string_view what, const Body& body) {
  try {
    return body();
  } catch (const Stopped&) {  // the candidate is another process, which has ended
    throw;
  } catch (const LaunchModeUnsupported&) {  // of another process, too
    throw;
  } catch (const DeviceError&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw Stopped{RunStatus::no_memory, fmt::format("{} ran out of memory: std::bad_alloc", what)};
  } catch (const std::exception& e) {
    throw Stopped{RunStatus::failed, fmt::format("{} threw: {}", what, e.what())};
  } catch (...) {
    throw Stopped{RunStatus::failed, fmt::format("{} threw something that is no std::exception", what)};
  }
}

std::optional<Stopped> judge_status(int status, const std::string& message) {
  switch (status) {
    case CHECKOP_OK:
      return {};
    case CHECKOP_UNSUPPORTED:
      return Stopped{RunStatus::unsupported, message.empty() ? "returned CHECKOP_UNSUPPORTED, no reason" : message};
    case CHECKOP_FAILED:
      return Stopped{RunStatus::failed, message.empty() ? "returned CHECKOP_FAILED, no reason" : message};
    default:
      return Stopped{RunStatus::failed, fmt::format("launch returned {}, which is no checkop_status{}{}", status,
                                                    message.empty() ? "" : ": ", message)};
  }
}

}  // namespace

Stage::Stage(Device& device, const checkop_kernel& kernel, Case c, std::string suffix, const TensorLayout& layout,
             const std::optional<RankPart>& place)
    : case_(std::move(c)),
      device_(device),
      kernel_(kernel),
      suffix_(std::move(suffix)),
      layout_(layout),
      place_(place) {}

Stage::~Stage() = default;

bool is_small(const Device& device, size_t bytes) {
  constexpr uint64_t kPart = 16;
  return bytes <= device.info().memory_bytes / kPart;
}

BufferPtr Stage::make_buffer(std::string_view role, const TensorSpec& spec) {
  if (!is_present(case_, spec)) return nullptr;
  const Placement placement = placement_of(spec);
  const size_t width = info(placement.dtype).bytes;
  return std::make_shared<GuardedBuffer>(
      device_, placement.dtype, placement.elements, fmt::format("{} '{}'{}", role, spec.name, suffix_), "element",
      (layout_.offset + width - 1) / width * width, role == "input" ? Access::read : Access::write);
}

Placement Stage::placement_of(const TensorSpec& spec) const {
  TensorLayout layout = layout_;
  if (is_tensor_parallel(case_) && !place_) layout.inputs = Arrangement::contiguous;
  return checkop::placement_of(case_, spec, layout);
}

int64_t Stage::padding_of(const TensorSpec& spec) const {
  return is_per_row(*case_.op, spec) && split_dims(spec.dims).size() >= 2 ? layout_.row_padding : 0;
}

void Stage::make_outputs_and_workspace() {
  for (const OutputSpec& spec : case_.pass->outputs) outputs.push_back(make_buffer("output", spec.tensor));
  if (is_tensor_parallel(case_) && !place_) {
    ranks_ = std::make_unique<RankGroup>(device_, kernel_, *this);
  } else {
    make_workspace(0);
  }
}

void Stage::make_workspace(size_t extra) {
  if (ranks_) return ranks_->make_workspace(extra);
  workspace.reset();
  if (kernel_.workspace_bytes == nullptr) return;
  Call call(*this, device_, nullptr, kernel_);
  size_t bytes = guarded_call("workspace_bytes", [&] { return kernel_.workspace_bytes(call.get()); });
  if (bytes > size_t{1} << 48) {
    throw Stopped{RunStatus::failed, fmt::format("workspace_bytes asked for {} bytes", bytes)};
  }
  if (bytes == 0) return;
  bytes += extra;
  workspace =
      std::make_unique<GuardedBuffer>(device_, DType::u8, static_cast<int64_t>(bytes), "workspace" + suffix_, "byte",
                                      /*offset=*/0, Access::write);
}

std::vector<BufferPtr> Stage::copy_outputs() {
  std::vector<BufferPtr> copies(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i] || !is_small(device_, outputs[i]->bytes())) continue;
    copies[i] = std::make_shared<GuardedBuffer>(device_, outputs[i]->dtype(), outputs[i]->count(),
                                                "copy of " + outputs[i]->what());
    copies[i]->copy_from(*outputs[i]);
  }
  return copies;
}

/// The workspace differs between both launches, so that a candidate that relies on its content gives different results.
std::string Stage::launch(int run) {
  if (run == 0) return launch({0, 0xff}, run);  // with the poison that a diagnosis of the outputs looks for
  return launch({1, 0x5a, {}, next_draw()}, run);
}

std::string Stage::launch(const InitialState& initial) { return launch(initial, 0); }

void Stage::poison_element(const InitialState& initial, uint64_t draw) {
  for (const BufferPtr& output : outputs) {
    if (!output || output->count() == 0) continue;
    const auto index = static_cast<int64_t>(draw % static_cast<uint64_t>(output->count()));
    output->poison_element(index, pattern_of(initial, output->dtype()));
  }
}

void Stage::poison(const InitialState& initial) {
  for (const BufferPtr& output : outputs) {
    if (output) output->poison(pattern_of(initial, output->dtype()));
  }
  if (workspace) workspace->poison(initial.workspace);
  if (ranks_) ranks_->poison(initial);
}

LaunchStatus Stage::invoke(checkop_host_comm* host_comm, void* comm) {
  Call call(*this, device_, workspace.get(), kernel_, host_comm, comm);
  try {
    // int, because a candidate may return a value that is no checkop_status
    const int status = guarded_call("launch", [&] { return static_cast<int>(kernel_.launch(call.get())); });
    return {judge_status(status, call.message()), call.message()};
  } catch (Stopped& stopped) {
    return {std::move(stopped), call.message()};
  }
}

uint64_t Stage::poison_before(DType dtype) const { return pattern_of(initial_, dtype); }

std::string Stage::launch(const InitialState& initial, int run) {
  initial_ = initial;
  poison(initial);
  device_.synchronize("poison outputs" + suffix_);

  const auto start = Clock::now();
  LaunchStatus answer;
  const auto launch = [&] {
    answer = invoke(nullptr, nullptr);
    return !answer.stopped;
  };
  try {
    if (ranks_) {
      answer = ranks_->launch(rank_limit, initial.mode);
    } else {
      device_.run(initial.mode, launch);
    }
  } catch (const LaunchModeUnsupported& e) {
    // The candidate's failure may be due to the launch mode: the plain launch worked.
    const std::string& said = answer.message;
    answer.stopped = Stopped{RunStatus::unsupported, said.empty() ? e.what() : fmt::format("{} ({})", e.what(), said)};
  }
  // Also after a failure: enqueued work must end before its buffers are freed, and its errors belong to this case.
  try {
    device_.synchronize(fmt::format("run {} of '{}'{}", run + 1, kernel_.name, suffix_));
  } catch (const DeviceError& e) {
    const std::string said = answer.stopped ? answer.stopped->message : answer.message;
    throw DeviceError(said.empty() ? e.what() : fmt::format("{} ({})", e.what(), said), e.sticky());
  }
  elapsed_ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  if (ranks_) {
    elapsed_ms = 0;
    for (const RankRun& rank : ranks_->runs()) elapsed_ms = std::max(elapsed_ms, rank.ms);
  }
  if (const auto& stopped = answer.stopped) {
    throw Stopped{stopped->status, fmt::format("{}{}{}", run == 0 ? "" : "second run: ", stopped->message, suffix_),
                  stopped->modified_input, stopped->guard_violation};
  }
  if (ranks_) ranks_->gather(*this, rank_differences_);
  return answer.message;
}

void Stage::enqueue() {
  if (ranks_) {
    if (LaunchStatus answer = ranks_->launch(rank_limit, {}); answer.stopped) throw std::move(*answer.stopped);
    return;
  }
  const checkop_call* const same = call();
  const int status = guarded_call("launch", [&] { return static_cast<int>(kernel_.launch(same)); });
  if (status == CHECKOP_OK) return;
  throw judge_status(status, call_->message()).value();
}

/// What enqueue() gives the candidate.
const checkop_call* Stage::call() {
  if (!call_) call_ = std::make_shared<Call>(*this, device_, workspace.get(), kernel_);
  return call_->get();
}

double Stage::time_ms(int64_t count, double cover_us, bool flush_ranks, const std::function<void()>& prepare,
                      double& unseen_ms) {
  unseen_ms = 0;
  if (ranks_) {
    prepare();
    if (LaunchStatus answer = ranks_->launch(rank_limit, {}, {count, cover_us, flush_ranks}); answer.stopped)
      throw std::move(*answer.stopped);
    double ms = 0;
    for (const RankRun& rank : ranks_->runs()) ms = std::max(ms, rank.ms);
    ranks_->gather(*this, rank_differences_);
    return ms;
  }
  return time_turns_ms({this}, count, cover_us, prepare, unseen_ms);
}

namespace {

/// Launches on calls in turns, in the process that has the kernel.
PluginHost::Timed time_in(PluginHost& host, PluginHost::Turns turns, const std::function<void()>& prepare) {
  const PluginHost::Timed timed = guarded_call("launch", [&] { return host.time(turns, prepare); });
  if (auto stopped = judge_status(timed.status, turns.calls.front()->message)) throw *std::move(stopped);
  return timed;
}

}  // namespace

std::vector<const checkop_call*> Stage::calls_of(const std::vector<Stage*>& stages) {
  std::vector<const checkop_call*> calls;
  for (Stage* stage : stages) calls.push_back(stage->call());
  return calls;
}

double Stage::whole_ms(const std::vector<Stage*>& stages, bool recorded, const std::function<void()>& prepare) {
  PluginHost& host = *PluginHost::of(stages.front()->kernel_);
  const host::Timer timer = recorded ? host::Timer::recorded : host::Timer::whole;
  return time_in(host, {calls_of(stages), std::ssize(stages), timer}, prepare).ms;
}

double Stage::time_turns_ms(const std::vector<Stage*>& stages, int64_t count, double cover_us,
                            const std::function<void()>& prepare, double& unseen_ms) {
  Stage& first = *stages.front();
  double ms = 0;
  unseen_ms = 0;
  if (PluginHost* const host = PluginHost::of(first.kernel_)) {
    const bool is_covered = cover_us > 0 && first.device_.info().kind != "cpu";
    const host::Timer timer = is_covered ? host::Timer::claimed : host::Timer::plain;
    const PluginHost::Timed timed = time_in(*host, {calls_of(stages), count, timer, cover_us}, prepare);
    ms = timed.ms;
    unseen_ms = timed.unseen_ms;
  } else {
    const auto launch_all = [&] {
      for (int64_t i = 0; i < count; ++i) stages[static_cast<size_t>(i) % stages.size()]->enqueue();
    };
    ms = first.device_.time_ms(launch_all, cover_us, prepare);
  }
  return ms / static_cast<double>(count);
}

std::vector<BufferPtr> Stage::release_inputs() {
  outputs.clear();
  workspace.reset();
  ranks_.reset();
  return std::move(inputs);
}

size_t Stage::workspace_bytes() const {
  return ranks_ ? ranks_->workspace_bytes() : workspace ? workspace->bytes() : 0;
}

size_t Stage::workspace_bytes(int32_t rank) const { return ranks_ ? ranks_->workspace_bytes(rank) : workspace_bytes(); }

std::vector<RankRun> Stage::rank_runs() const {
  return ranks_ && world_size(case_) > 1 ? ranks_->runs() : std::vector<RankRun>();
}

void Stage::check_rank_inputs(std::vector<std::string>& modified) const {
  if (ranks_) ranks_->check_inputs(*this, modified);
}

void Stage::check_guards(std::vector<std::string>& violations) {
  std::vector<std::string> found;
  for (const auto* buffers : {&inputs, &outputs}) {
    for (const BufferPtr& buffer : *buffers) {
      if (buffer) buffer->check_guards(found);
    }
  }
  if (workspace) workspace->check_guards(found);
  if (ranks_) ranks_->check_guards(found);
  for (std::string& sentence : found) {
    if (std::find(violations.begin(), violations.end(), sentence) == violations.end()) {
      violations.push_back(std::move(sentence));
    }
  }
}

void note_modified_inputs(const std::vector<BufferPtr>& buffers, const ContentOf& content,
                          const std::vector<Tensor>& host, std::vector<std::string>& modified) {
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (!buffers[i] || buffers[i]->is_as_given()) continue;
    const std::string prefix = host[i].name + ": ";
    const auto known = [&](const std::string& line) { return line.starts_with(prefix); };
    if (std::any_of(modified.begin(), modified.end(), known)) continue;
    const BitDifference bits = buffers[i]->difference_from(content(i));
    if (bits.different == 0) continue;
    modified.push_back(fmt::format("{}{} element{} changed, first at index {}", prefix, bits.different,
                                   bits.different == 1 ? "" : "s", bits.first_index));
  }
}

void note_modified_inputs(const Stage& stage, const std::vector<Tensor>& host, std::vector<std::string>& modified) {
  note_modified_inputs(
      stage.inputs, [&](size_t i) { return host[i].bytes.data(); }, host, modified);
  stage.check_rank_inputs(modified);
}

void note_rank_differences(const Stage& stage, RunResult& result) {
  for (const std::string& sentence : stage.rank_differences()) {
    const std::string prefix = sentence.substr(0, sentence.find(' '));
    const auto told = [&](const std::string& known) { return known.starts_with(prefix); };
    if (std::none_of(result.rank_differences.begin(), result.rank_differences.end(), told))
      result.rank_differences.push_back(sentence);
  }
}

}  // namespace checkop
