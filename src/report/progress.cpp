// SPDX-License-Identifier: Apache-2.0
// The progress line: current step, speed, remaining time.
#include "report/progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>

namespace checkop {
namespace {

size_t columns_of(std::FILE* terminal) {
  winsize size{};
  constexpr size_t kUsual = 80;
  return ioctl(fileno(terminal), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

std::string format_left(double seconds) {
  constexpr double kMinute = 60, kHour = 3600;
  if (seconds < kMinute) return fmt::format("{:.0f} s", std::ceil(seconds));
  if (seconds < 100 * kMinute) return fmt::format("{:.0f} min", std::ceil(seconds / kMinute));
  return fmt::format("{:.1f} h", seconds / kHour);
}

}  // namespace

std::string describe_progress(size_t done, size_t count, double share, double seconds) {
  std::string text = fmt::format("{}/{}", done, count);
  if (done == 0 || !(seconds > 0) || !(share > 0)) return text;
  const double rate = static_cast<double>(done) / seconds;
  text += rate >= 10    ? fmt::format("  {:.0f} checks/s", rate)
          : rate >= 0.1 ? fmt::format("  {:.1f} checks/s", rate)
                        : fmt::format("  {:.1f} checks/min", rate * 60);
  return text + fmt::format(", {} left", format_left(seconds * (1 - share) / share));
}

Progress::Progress(std::FILE* out, std::vector<Step> steps)
    : out_(out != nullptr && isatty(fileno(out)) != 0 ? out : nullptr), steps_(std::move(steps)) {
  for (const Step& step : steps_) total_ += step.weight;
}

void Progress::show(size_t index) {
  for (; at_ < index && at_ < steps_.size(); ++at_) done_ += steps_[at_].weight;
  if (index < steps_.size()) write(steps_[index]);
}

void Progress::begin(size_t index) { write(steps_.at(index)); }

void Progress::end(size_t index) {
  done_ += steps_.at(index).weight;
  ++at_;
}

void Progress::write(const Step& step) {
  if (out_ == nullptr) return;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  std::string line =
      fmt::format("[ RUNNING  ] {}  {}",
                  describe_progress(at_, steps_.size(), total_ > 0 ? done_ / total_ : 0, seconds), step.name);
  line.resize(std::min(line.size(), columns_of(out_) - 1));
  fmt::print(out_, "\r\x1b[2K{}", line);
  std::fflush(out_);
  shown_ = true;
}

void Progress::clear() {
  if (!shown_) return;
  fmt::print(out_, "\r\x1b[2K");
  shown_ = false;
}

}  // namespace checkop
