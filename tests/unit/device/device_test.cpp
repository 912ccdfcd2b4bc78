// SPDX-License-Identifier: Apache-2.0
// The CPU device, and the CUDA device in a build without CUDA.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "device/device.hpp"
#include "support/device_memory_helper.hpp"
#include "support/message_of.hpp"

namespace checkop::device_test {
namespace {

TEST(CpuDevice, MemoryIsAlignedTo256Bytes) {
  const auto device = open_cpu_device();
  for (const size_t bytes : {1, 255, 257, 100000}) {
    std::byte* memory = device->allocate(bytes, "test");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 256, 0u) << bytes;
    device->free(memory);
  }
}

TEST(CpuDevice, FillRepeatsPatternsOfEveryWidth) { expect_fill_repeats(*open_cpu_device()); }

TEST(CpuDevice, ContentIsToldApart) { expect_content_is_told_apart(*open_cpu_device()); }

TEST(CpuDevice, DownloadReturnsWhatWasUploaded) {
  const auto device = open_cpu_device();
  const char text[] = "bits";
  char back[sizeof(text)] = {};
  std::byte* memory = device->allocate(sizeof(text), "test");
  device->upload(memory, reinterpret_cast<const std::byte*>(text), sizeof(text));
  device->download(reinterpret_cast<std::byte*>(back), memory, sizeof(text));
  device->free(memory);
  EXPECT_STREQ(back, text);
}

TEST(CpuDevice, RowsEqualTellsOneByte) { expect_rows_equal_tells(*open_cpu_device()); }

TEST(CpuDevice, RowsAreCopiedToTheirPlaces) { expect_rows_are_copied(*open_cpu_device()); }

TEST(CpuDevice, ImpossibleAllocationNamesWhatItWasFor) {
  const auto device = open_cpu_device();
  try {
    device->allocate(std::numeric_limits<size_t>::max() / 4, "output 'c'");
    FAIL() << "no exception";
  } catch (const DeviceError& e) {
    EXPECT_NE(std::string(e.what()).find("allocate output 'c'"), std::string::npos) << e.what();
    EXPECT_FALSE(e.sticky());
  }
}

TEST(CpuDevice, NamesTheProcessor) {
  const DeviceInfo info = open_cpu_device()->info();
  EXPECT_EQ(info.kind, "cpu");
  EXPECT_FALSE(info.name.empty());
  EXPECT_EQ(info.arch_key, "");
  EXPECT_GE(info.multiprocessors, 1);
  EXPECT_GT(info.memory_bytes, 0u);
}

TEST(CpuDevice, HasNoStream) { EXPECT_EQ(open_cpu_device()->stream(), nullptr); }

TEST(CudaDevice, MissingDeviceIsAnEnvironmentError) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "this machine has a CUDA device";
  const std::string message = message_of([] { open_cuda_device(0); });
  if (built_with_cuda()) {
    EXPECT_NE(message.find("cuda:0"), std::string::npos) << message;
  } else {
    EXPECT_EQ(message, "device 'cuda': built without CUDA; reconfigure with 'cmake --preset cuda'");
  }
}

TEST(CpuDevice, RunsNoLaunchesInOtherWays) {
  const auto complaint = [](LaunchMode::Kind kind) {
    return message_of([&] { open_cpu_device()->run({kind}, [] { return true; }); });
  };
  EXPECT_EQ(complaint(LaunchMode::Kind::contended), "'cpu' runs one launch at a time, so contention can't be tested");
  EXPECT_EQ(complaint(LaunchMode::Kind::replayed), "'cpu' has no graphs");
}

}  // namespace
}  // namespace checkop::device_test
