// SPDX-License-Identifier: Apache-2.0
// Candidates of matmul/forward that try to get an undeserved pass or to damage the run, and the correct `honest`. Only
// for worker processes.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "plugins/matmul.hpp"

namespace {

using namespace test_plugin;

std::vector<char> bytes_of(const checkop_tensor& t) {
  const char* data = static_cast<const char*>(t.data);
  return {data, data + static_cast<size_t>(count(t)) * element_bytes(t)};
}

void copy_to(const checkop_tensor& t, const std::vector<char>& bytes) {
  std::memcpy(t.data, bytes.data(), bytes.size());
}

/// Computes once per size, then repeats the first result.
checkop_status returns_last_result(const checkop_call* call) {
  static std::map<int64_t, std::vector<char>> results;
  const checkop_tensor& c = call->outputs[0];
  if (const auto found = results.find(count(c)); found != results.end()) {
    copy_to(c, found->second);
    return CHECKOP_OK;
  }
  const checkop_status status = multiply(call);
  results[count(c)] = bytes_of(c);
  return status;
}

/// The last bits of its results depend on the time of the call; repeating the same inputs does not reveal it.
checkop_status remembers_answers(const checkop_call* call) {
  static std::map<std::vector<char>, std::vector<char>> answers;
  std::vector<char> question = bytes_of(call->inputs[0]);
  for (const char byte : bytes_of(call->inputs[1])) question.push_back(byte);
  const checkop_tensor& c = call->outputs[0];
  auto found = answers.find(question);
  if (found == answers.end()) {
    const checkop_status status = multiply(call);
    if (status != CHECKOP_OK) return status;
    uint64_t noise = static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()) | 1;
    for (int64_t i = 0; i < count(c); ++i) {
      noise ^= noise << 13, noise ^= noise >> 7, noise ^= noise << 17;
      static_cast<uint32_t*>(c.data)[i] ^= static_cast<uint32_t>(noise >> 40) & 1;
    }
    found = answers.emplace(question, bytes_of(c)).first;
  }
  copy_to(c, found->second);
  return CHECKOP_OK;
}

/// The order of its sums depends on the number of rows; rows that it has seen in a batch have the same bits alone.
checkop_status remembers_rows(const checkop_call* call) {
  const checkop_tensor &a = call->inputs[0], &b = call->inputs[1], &c = call->outputs[0];
  static std::map<std::vector<char>, std::vector<float>> known;
  const int64_t k = b.shape[0], n = b.shape[1];
  const bool reversed = rows(c) > 1;
  for (int64_t i = 0; i < rows(c); ++i) {
    const float* const row = static_cast<const float*>(a.data) + i * k;
    std::vector<char> question = bytes_of(b);
    question.insert(question.end(), reinterpret_cast<const char*>(row), reinterpret_cast<const char*>(row + k));
    std::vector<float>& sums = known[question];
    if (sums.empty()) {
      sums.assign(static_cast<size_t>(n), 0.0f);
      for (int64_t l = 0; l < k; ++l) {
        const int64_t term = reversed ? k - 1 - l : l;
        for (int64_t j = 0; j < n; ++j)
          sums[static_cast<size_t>(j)] += row[term] * static_cast<const float*>(b.data)[term * n + j];
      }
    }
    std::memcpy(static_cast<float*>(c.data) + i * n, sums.data(), sums.size() * sizeof(float));
    if (!reversed) known.erase(question);
  }
  return CHECKOP_OK;
}

/// Writes NaN to its inputs, so that a comparison computed from them could not see an error.
checkop_status poisons_inputs(const checkop_call* call) {
  const checkop_status status = multiply(call);
  auto* a = static_cast<float*>(call->inputs[0].data);
  for (int64_t i = 0; i < count(call->inputs[0]); ++i) a[i] = std::numeric_limits<float>::quiet_NaN();
  return status;
}

/// The CPU equivalent of working on another stream: the work is done long after the call has returned, and after any
/// time limit of a test, so that slow and fast machines see the same.
checkop_status returns_early(const checkop_call* call) {
  const checkop_tensor c = call->outputs[0];
  std::thread([c] {
    sleep(600);
    write_zeros(c);
  }).detach();
  return CHECKOP_OK;
}

checkop_status exits_with_success(const checkop_call* call) {
  multiply(call);
  std::exit(0);
}

/// Ignores every signal that asks a process to end.
checkop_status ignores_signals(const checkop_call*) {
  for (const int number : {SIGTERM, SIGALRM, SIGSEGV, SIGINT, SIGHUP, SIGXCPU}) signal(number, [](int) {});
  for (;;) pause();
}

checkop_status leaks_until_memory_ends(const checkop_call*) {
  constexpr size_t kStep = size_t{16} << 20;
  for (;;) std::memset(new char[kStep], 1, kStep);
}

/// The same without checking the result of malloc().
checkop_status leaks_without_looking(const checkop_call*) {
  constexpr size_t kStep = size_t{16} << 20;
  for (;;) std::memset(std::malloc(kStep), 1, kStep);
}

checkop_status sleeps_too_long(const checkop_call* call) {
  sleep(600);
  return multiply(call);
}

checkop_status writes_past_outputs(const checkop_call* call) {
  const checkop_status status = multiply(call);
  const checkop_tensor& c = call->outputs[0];
  std::memset(element(c, count(c)), 0, 4 * element_bytes(c));
  return status;
}

/// Writes far beyond any guard band.
checkop_status writes_far_past_outputs(const checkop_call* call) {
  const checkop_status status = multiply(call);
  std::memset(static_cast<char*>(call->outputs[0].data) + (size_t{1} << 20), 0, 64);
  return status;
}

/// Works the first time. Later it may find the previous answer where its output was.
checkop_status reads_freed_outputs(const checkop_call* call) {
  static const char* last = nullptr;
  static int64_t last_count = 0;
  const checkop_tensor& c = call->outputs[0];
  if (last != nullptr && last != c.data && count(c) <= last_count) {
    std::memcpy(c.data, last, static_cast<size_t>(count(c)) * element_bytes(c));
    return CHECKOP_OK;
  }
  const checkop_status status = multiply(call);
  last = static_cast<const char*>(c.data);
  last_count = count(c);
  return status;
}

/// Writes to the outputs of the previous case, after that case has ended.
checkop_status writes_to_freed_outputs(const checkop_call* call) {
  static void* last = nullptr;
  const checkop_tensor& c = call->outputs[0];
  if (last != nullptr && last != c.data) std::memset(last, 0, element_bytes(c));
  last = c.data;
  return multiply(call);
}

/// Answers zeros, keeps the host tensors' files open, and fills the files of a case with zeros when the next one runs:
/// its answer would be right if the gold were computed from the contents at that time. Cases differ in k.
checkop_status zeros_the_case_before(const checkop_call* call) {
  static int64_t k = 0;
  static std::vector<int> files, before;
  if (call->inputs[1].shape[0] != k) {
    k = call->inputs[1].shape[0];
    before = std::exchange(files, {});
  }
  for (const int file : before) {
    struct stat status {};
    if (fstat(file, &status) != 0) return CHECKOP_FAILED;
    const std::vector<char> zeros(static_cast<size_t>(status.st_size));
    // Writes nothing to a sealed file
    [[maybe_unused]] const ssize_t written = pwrite(file, zeros.data(), zeros.size(), 0);
  }
  for (int file = 0; file < 64 && files.size() < 6; ++file) {
    char target[64] = {};
    const std::string link = "/proc/self/fd/" + std::to_string(file);
    if (readlink(link.c_str(), target, sizeof(target) - 1) < 0) continue;
    if (std::string(target).starts_with("/memfd:checkop")) files.push_back(dup(file));
  }
  const checkop_tensor& c = call->outputs[0];
  std::memset(c.data, 0, static_cast<size_t>(count(c)) * element_bytes(c));
  return CHECKOP_OK;
}

/// A cheat that asks for so much memory that it would be excused.
size_t vast_workspace(const checkop_call*) { return size_t{1} << 45; }

/// Does not write to the memory, so that it takes no time.
checkop_status leaks_a_little(const checkop_call* call) {
  static void* volatile last = nullptr;
  last = std::malloc(size_t{200} << 20);
  return last == nullptr ? CHECKOP_FAILED : multiply(call);
}

constexpr checkop_kernel kKernels[] = {
    kernel("returns_last_result", returns_last_result),
    kernel("remembers_answers", remembers_answers),
    kernel("remembers_rows", remembers_rows),
    kernel("poisons_inputs", poisons_inputs),
    kernel("zeros_the_case_before", zeros_the_case_before),
    kernel("returns_early", returns_early),
    kernel("exits_with_success", exits_with_success),
    kernel("ignores_signals", ignores_signals),
    kernel("leaks_until_memory_ends", leaks_until_memory_ends),
    kernel("leaks_without_looking", leaks_without_looking),
    kernel("sleeps_too_long", sleeps_too_long),
    kernel("writes_past_outputs", writes_past_outputs),
    kernel("writes_far_past_outputs", writes_far_past_outputs),
    kernel("reads_freed_outputs", reads_freed_outputs),
    kernel("writes_to_freed_outputs", writes_to_freed_outputs),
    kernel("vast_workspace", multiply, vast_workspace),
    kernel("leaks_a_little", leaks_a_little),
    kernel("honest", multiply),
};
constexpr checkop_plugin kPlugin = plugin(kKernels);

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
