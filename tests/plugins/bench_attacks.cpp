// SPDX-License-Identifier: Apache-2.0
// Candidates of matmul/forward that attack the clock, or the processes beside it. Those that give right answers do work
// that takes milliseconds, and try to do it where no clock sees it.
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "plugins/matmul.hpp"
#include "plugins/patch.hpp"

namespace {

using namespace test_plugin;

/// Takes a processor a few milliseconds.
void work() {
  volatile uint64_t x = 1;
  for (int i = 0; i < 1'500'000; ++i) x = x * 6364136223846793005u + 1442695040888963407u;
}

checkop_status honest_slow(const checkop_call* call) {
  work();
  return multiply(call);
}

/// Right if the attack succeeded, wrong otherwise.
checkop_status succeed_if(bool success, const checkop_call* call) {
  if (success) return multiply(call);
  write_zeros(call->outputs[0]);
  return CHECKOP_OK;
}

/// Right if it could stop the clock of its process, so that the answer shows this.
checkop_status stops_the_clock(const checkop_call* call) {
  static const bool is_stopped = stop_the_clock();
  work();
  return succeed_if(is_stopped, call);
}

bool maps_file(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.ends_with("/" + name)) return true;
  return false;
}

/// Right if it is in the judge's process, or may write to the judge's memory.
checkop_status reaches_the_judge(const checkop_call* call) {
  static const bool success = [] {
    if (maps_file("check_operator")) return true;
    const std::string memory = "/proc/" + std::to_string(getppid()) + "/mem";
    if (open(memory.c_str(), O_RDWR) >= 0) return true;
    char byte = 0;
    const iovec own{&byte, 1}, judges{reinterpret_cast<void*>(stop_the_clock), 1};  // an address that may be there
    return process_vm_writev(getppid(), &own, 1, &judges, 1, 0) == 1;
  }();
  return succeed_if(success, call);
}

/// Right if it is in the process of another candidate, where the answers to the same data lie.
checkop_status reaches_a_rival(const checkop_call* call) {
  static const bool success = maps_file("native.so");
  return succeed_if(success, call);
}

/// Writes in its first launch, on its process's connection to the judge, that the next request is done.
checkop_status forges_done(const checkop_call* call) {
  static const bool is_sent = [] {
    constexpr char kDone = 2;  // a number of plugin_host/wire.hpp
    const int32_t status = CHECKOP_OK;
    const uint64_t text_bytes = 0, length = sizeof kDone + sizeof status + sizeof text_bytes;
    std::string message(reinterpret_cast<const char*>(&length), sizeof length);
    message += kDone;
    message.append(reinterpret_cast<const char*>(&status), sizeof status);
    message.append(reinterpret_cast<const char*>(&text_bytes), sizeof text_bytes);
    return write(3, message.data(), message.size()) == static_cast<ssize_t>(message.size());
  }();
  return succeed_if(is_sent, call);
}

std::string content_of(const checkop_call* call) {
  std::string content;
  for (int i = 0; i < 2; ++i)
    content.append(element(call->inputs[i], 0), element(call->inputs[i], count(call->inputs[i])));
  return content;
}

/// Answers that were computed once.
class Answers {
 public:
  /// Computes the answer to `content`: the inputs may hold other data by now.
  void compute(const checkop_call* call, std::string content) {
    checkop_tensor inputs[] = {call->inputs[0], call->inputs[1]};
    inputs[0].data = content.data();
    inputs[1].data = content.data() + static_cast<size_t>(count(inputs[0])) * element_bytes(inputs[0]);
    checkop_tensor c = call->outputs[0];
    std::string answer(static_cast<size_t>(count(c)) * element_bytes(c), '\0');
    c.data = answer.data();
    checkop_call own{};
    own.inputs = inputs;
    own.outputs = &c;
    work();
    multiply(&own);
    const std::lock_guard lock(mutex_);
    by_content_[content] = answer;
  }
  bool has(const std::string& content) {
    const std::lock_guard lock(mutex_);
    return by_content_.contains(content);
  }
  checkop_status give(const checkop_call* call, const std::string& content) {
    if (!has(content)) compute(call, content);
    const std::lock_guard lock(mutex_);
    const std::string& answer = by_content_[content];
    std::memcpy(call->outputs[0].data, answer.data(), answer.size());
    return CHECKOP_OK;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> by_content_;
};

/// Looks at all of its inputs, and computes only for data that it has not seen before.
checkop_status replays_by_content(const checkop_call* call) {
  static Answers answers;
  return answers.give(call, content_of(call));
}

/// Answers of these two, which are timed in turns.
Answers& of_neighbours() {
  static Answers answers;
  return answers;
}
checkop_status works_for_a_neighbour(const checkop_call* call) {
  of_neighbours().compute(call, content_of(call));
  return multiply(call);
}
/// Gives what its neighbour computed from the same data.
checkop_status lives_on_a_neighbour(const checkop_call* call) { return of_neighbours().give(call, content_of(call)); }

/// A thread computes as soon as data are there, while the judge prepares the launch. The thread ends with the last of
/// 20 launches and five to warm up, since their memory goes then.
checkop_status computes_ahead(const checkop_call* call) {
  static Answers answers;
  static std::atomic<int> launches = 0;
  if (++launches == 1) {
    static const checkop_tensor inputs[] = {call->inputs[0], call->inputs[1]};
    static const checkop_tensor output = call->outputs[0];
    static const std::vector<int64_t> a(inputs[0].shape, inputs[0].shape + inputs[0].rank);
    static const std::vector<int64_t> b(inputs[1].shape, inputs[1].shape + inputs[1].rank);
    static const std::vector<int64_t> c(output.shape, output.shape + output.rank);
    std::thread([] {
      checkop_tensor own[] = {inputs[0], inputs[1], output};
      own[0].shape = a.data(), own[1].shape = b.data(), own[2].shape = c.data();
      checkop_call ahead{};
      ahead.inputs = own;
      ahead.outputs = own + 2;
      while (launches < 25) {
        const std::string content = content_of(&ahead);
        if (!answers.has(content)) answers.compute(&ahead, content);
      }
    }).detach();
  }
  return answers.give(call, content_of(call));
}

constexpr checkop_kernel kKernels[] = {
    kernel("honest_slow", honest_slow),
    kernel("stops_the_clock", stops_the_clock),
    kernel("reaches_the_judge", reaches_the_judge),
    kernel("reaches_a_rival", reaches_a_rival),
    kernel("forges_done", forges_done),
    kernel("replays_by_content", replays_by_content),
    kernel("works_for_a_neighbour", works_for_a_neighbour),
    kernel("lives_on_a_neighbour", lives_on_a_neighbour),
    kernel("computes_ahead", computes_ahead),
};
constexpr checkop_plugin kPlugin = plugin(kKernels);

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
