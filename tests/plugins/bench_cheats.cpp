// SPDX-License-Identifier: Apache-2.0
// Candidates of matmul/forward that try to get a time that they have not earned, and honest ones. A check of the same
// flags would pass some of them: they behave while nobody times.
#include <atomic>
#include <chrono>
#include <cmath>
#include <map>
#include <thread>
#include <vector>

#include "plugins/matmul.hpp"

namespace {

using namespace test_plugin;

checkop_status honest(const checkop_call* call) { return multiply(call); }

/// Each launch beyond the first few is skipped: the buffers hold an answer already.
checkop_status computes_first(const checkop_call* call) {
  static int launches = 0;
  return ++launches <= 3 ? multiply(call) : CHECKOP_OK;
}

/// Gives the first answer at an address again.
checkop_status remembers_by_address(const checkop_call* call) {
  static std::map<const void*, std::vector<char>> answers;
  const checkop_tensor& c = call->outputs[0];
  const auto [answer, is_new] = answers.try_emplace(call->inputs[0].data);
  if (is_new) {
    const checkop_status status = multiply(call);
    answer->second.assign(element(c, 0), element(c, count(c)));
    return status;
  }
  std::memcpy(c.data, answer->second.data(), answer->second.size());
  return CHECKOP_OK;
}

/// Leaves alone what looks like its last answer at this address: launches back to back cost nothing.
checkop_status finds_its_answer(const checkop_call* call) {
  static std::map<const void*, float> firsts;
  auto* const c = static_cast<float*>(call->outputs[0].data);
  if (const auto found = firsts.find(c); found != firsts.end() && found->second == c[0]) return CHECKOP_OK;
  const checkop_status status = multiply(call);
  firsts[c] = c[0];
  return status;
}

/// Answers from a look at one element of the input, in place of all of it.
checkop_status looks_at_one_element(const checkop_call* call) {
  static std::map<float, std::vector<char>> answers;
  const checkop_tensor& c = call->outputs[0];
  const auto [answer, is_new] = answers.try_emplace(std::trunc(*static_cast<const float*>(call->inputs[0].data)));
  if (is_new) {
    const checkop_status status = multiply(call);
    answer->second.assign(element(c, 0), element(c, count(c)));
    return status;
  }
  std::memcpy(c.data, answer->second.data(), answer->second.size());
  return CHECKOP_OK;
}

/// Works when the call has returned, on the data of that call: while the judge prepares the next launch, for example.
/// Shapes and data are copies, since those of a call end with it.
checkop_status works_in_a_thread(const checkop_call* call) {
  static std::atomic<bool> is_busy = false;
  while (is_busy) std::this_thread::yield();
  std::vector<checkop_tensor> tensors{call->inputs[0], call->inputs[1], call->outputs[0]};
  std::vector<std::vector<int64_t>> shapes;
  for (const checkop_tensor& tensor : tensors) shapes.emplace_back(tensor.shape, tensor.shape + tensor.rank);
  std::vector<std::vector<float>> data;
  for (size_t i = 0; i < 2; ++i) {
    const auto* const begin = static_cast<const float*>(tensors[i].data);
    data.emplace_back(begin, begin + count(tensors[i]));
  }
  is_busy = true;
  std::thread([tensors, shapes, data]() mutable {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    for (size_t i = 0; i < tensors.size(); ++i) tensors[i].shape = shapes[i].data();
    for (size_t i = 0; i < data.size(); ++i) tensors[i].data = data[i].data();
    checkop_call later{};
    later.inputs = tensors.data();
    later.outputs = &tensors[2];
    multiply(&later);
    is_busy = false;
  }).detach();
  return CHECKOP_OK;
}

/// Right while it is warmed up and checked, wrong from then on.
checkop_status wrong_when_timed(const checkop_call* call) {
  static int launches = 0;
  const checkop_status status = multiply(call);
  if (++launches > 12) static_cast<float*>(call->outputs[0].data)[3] += 1;
  return status;
}

checkop_status always_wrong(const checkop_call* call) {
  write_zeros(call->outputs[0]);
  return CHECKOP_OK;
}

checkop_status writes_input(const checkop_call* call) {
  static_cast<float*>(const_cast<void*>(static_cast<const void*>(call->inputs[0].data)))[1] += 1;
  return multiply(call);
}

checkop_status writes_slack(const checkop_call* call) {
  static_cast<float*>(call->outputs[0].data)[-1] = 0;
  return multiply(call);
}

/// The last bit of one element changes from launch to launch.
checkop_status changes_bits(const checkop_call* call) {
  static uint32_t launches = 0;
  const checkop_status status = multiply(call);
  static_cast<uint32_t*>(call->outputs[0].data)[0] ^= ++launches & 1;
  return status;
}

/// Right in its first 20 launches; from then on one element is wrong by 8.
checkop_status changes_results(const checkop_call* call) {
  static int launches = 0;
  const checkop_status status = multiply(call);
  if (++launches > 20) static_cast<float*>(call->outputs[0].data)[1] += 8;
  return status;
}

constexpr checkop_kernel kKernels[] = {
    kernel("honest_timed", honest),
    kernel("computes_first", computes_first),
    kernel("remembers_by_address", remembers_by_address),
    kernel("finds_its_answer", finds_its_answer),
    kernel("looks_at_one_element", looks_at_one_element),
    kernel("works_in_a_thread", works_in_a_thread),
    kernel("wrong_when_timed", wrong_when_timed),
    kernel("always_wrong", always_wrong),
    kernel("bench_writes_input", writes_input),
    kernel("bench_writes_slack", writes_slack),
    kernel("changes_bits", changes_bits),
    kernel("changes_results", changes_results),
};
constexpr checkop_plugin kPlugin = plugin(kKernels);

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
