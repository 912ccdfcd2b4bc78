// SPDX-License-Identifier: Apache-2.0
// Guarded buffers: the position of the guards, the poison values, and the messages about damage.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "device/buffers.hpp"
#include "run/runner.hpp"
#include "support/device_helper.hpp"

namespace checkop::buffers_test {
namespace {

constexpr size_t kBlockBytes = size_t{32} << 20;  // block size of for_each_block

/// Element `index` of the payload; an index below 0 or from `count` on is in a guard band.
std::byte* element(GuardedBuffer& buffer, DType dtype, int64_t index) {
  return buffer.data() + index * static_cast<int64_t>(info(dtype).bytes);
}

/// Elements of one guard band.
int64_t guard_elements(DType dtype) {
  return std::max(kGuardElements, static_cast<int64_t>(open_cpu_device()->least_guard_bytes() / info(dtype).bytes));
}

/// Inverts every bit of an element.
void damage(GuardedBuffer& buffer, DType dtype, int64_t index) {
  for (size_t i = 0; i < info(dtype).bytes; ++i) element(buffer, dtype, index)[i] ^= std::byte{0xff};
}

std::vector<std::string> violations_of(GuardedBuffer& buffer) {
  std::vector<std::string> violations;
  buffer.check_guards(violations);
  return violations;
}

/// A CPU device that counts its blocks and refuses to fill.
class BrokenDevice : public DelegatingDevice {
 public:
  explicit BrokenDevice(int fills) : fills_(fills) {}
  std::byte* allocate(size_t bytes, const std::string& what) override {
    std::byte* memory = DelegatingDevice::allocate(bytes, what);
    ++blocks;
    return memory;
  }
  void free(std::byte* memory) noexcept override {
    --blocks;
    DelegatingDevice::free(memory);
  }
  void download(std::byte* host, const std::byte* device, size_t bytes) override {
    longest_download = std::max(longest_download, bytes);
    DelegatingDevice::download(host, device, bytes);
  }
  void fill(std::byte* device, uint64_t pattern, size_t width, size_t bytes) override {
    if (fills_-- == 0) throw DeviceError("fill: refused", false);
    DelegatingDevice::fill(device, pattern, width, bytes);
  }

  int blocks = 0;
  size_t longest_download = 0;

 private:
  int fills_;
};

// --- every element type

/// A CPU device that shares memory in pages of 1 MiB, as a GPU does in larger ones.
class DeviceOfLargePages : public DelegatingDevice {
 public:
  size_t shared_bytes(size_t bytes) const override { return (bytes + kPage - 1) / kPage * kPage; }
  std::byte* allocate_shared(size_t bytes, const std::string& what, Access) override {
    begin = allocate(shared_bytes(bytes), what);
    end = begin + shared_bytes(bytes);
    return begin;
  }
  static constexpr size_t kPage = size_t{1} << 20;
  std::byte *begin = nullptr, *end = nullptr;
};

class BuffersOf : public testing::TestWithParam<DType> {
 protected:
  std::unique_ptr<Device> device_ = open_cpu_device();
};
INSTANTIATE_TEST_SUITE_P(EveryType, BuffersOf, testing::ValuesIn(kDTypes),
                         [](const auto& each) { return std::string(checkop::info(each.param).name); });

TEST_P(BuffersOf, PoisonDiffersBetweenTheRunsAndFromTheGuards) {
  const Poison& poison = poison_of(GetParam());
  EXPECT_NE(poison.output[0], poison.output[1]);
  EXPECT_NE(poison.output[0], poison.guard);
  EXPECT_NE(poison.output[1], poison.guard);
}

TEST_P(BuffersOf, PoisonFitsTheElement) {
  const size_t bits = 8 * info(GetParam()).bytes;
  for (const uint64_t pattern :
       {poison_of(GetParam()).output[0], poison_of(GetParam()).output[1], poison_of(GetParam()).guard}) {
    EXPECT_TRUE(bits == 64 || pattern >> bits == 0) << pattern;
    EXPECT_NE(pattern, 0u);
  }
}

/// Types of 8 bits have too few NaNs to draw from.
bool has_poison_of_nan(DType dtype) { return info(dtype).is_float && info(dtype).bytes > 1; }

TEST_P(BuffersOf, PoisonIsNaNForFloatsButForTheSecondLaunch) {
  for (const uint64_t pattern :
       {poison_of(GetParam()).output[0], poison_of(GetParam()).output[1], poison_of(GetParam()).guard}) {
    double value = 0;
    info(GetParam()).decode(reinterpret_cast<const std::byte*>(&pattern), &value, 1);
    EXPECT_EQ(std::isnan(value), has_poison_of_nan(GetParam()) && pattern != poison_of(GetParam()).output[1])
        << pattern;
  }
}

TEST_P(BuffersOf, DrawnPoisonIsOfItsKindAndNoneOfTheOtherPatterns) {
  const Poison& poison = poison_of(GetParam());
  std::set<uint64_t> seen;
  for (uint64_t draw = 1; draw <= 1000; ++draw) {
    for (const size_t kind : {0u, 1u}) {
      const uint64_t pattern = drawn_poison(GetParam(), kind, draw);
      EXPECT_TRUE(pattern != poison.output[0] && pattern != poison.output[1] && pattern != poison.guard) << draw;
      double value = 0;
      info(GetParam()).decode(reinterpret_cast<const std::byte*>(&pattern), &value, 1);
      if (info(GetParam()).bytes > 1) {
        EXPECT_EQ(std::isnan(value), has_poison_of_nan(GetParam()) && kind == 0) << draw;
      }
      if (has_poison_of_nan(GetParam()) && kind == 1) {
        EXPECT_TRUE(std::abs(value) > 0.05 && std::abs(value) < 4) << value;
      }
      EXPECT_EQ(pattern, drawn_poison(GetParam(), kind, draw));
      seen.insert(pattern);
    }
  }
  EXPECT_GT(seen.size(), 100u) << "of 252 or more";
  EXPECT_EQ(drawn_poison(GetParam(), 0, 0), poison.output[0]);
  EXPECT_EQ(drawn_poison(GetParam(), 1, 0), poison.output[1]);
}

TEST_P(BuffersOf, GuardBandsHoldTheGuardPatternToTheirEnds) {
  GuardedBuffer buffer(*device_, GetParam(), 5, "x");
  for (const int64_t index :
       {-guard_elements(GetParam()), int64_t{-1}, int64_t{5}, 5 + guard_elements(GetParam()) - 1}) {
    EXPECT_EQ(load_bits(GetParam(), element(buffer, GetParam(), index), 0), poison_of(GetParam()).guard) << index;
  }
}

TEST_P(BuffersOf, PayloadIsAlignedTo256Bytes) {
  GuardedBuffer buffer(*device_, GetParam(), 3, "x");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 256, 0u);
}

TEST_P(BuffersOf, PoisonOfARunFillsThePayloadAndNoGuard) {
  GuardedBuffer buffer(*device_, GetParam(), 7, "x");
  for (const int run : {0, 1}) {
    buffer.poison_output(run);
    for (int64_t i = 0; i < 7; ++i) {
      EXPECT_EQ(load_bits(GetParam(), buffer.data(), i), poison_of(GetParam()).output[run]) << run << " " << i;
    }
    EXPECT_TRUE(violations_of(buffer).empty()) << run;
  }
}

TEST_P(BuffersOf, DamageBeforeIsCountedAndTheNearestPlaceNamed) {
  GuardedBuffer buffer(*device_, GetParam(), 5, "output 'y'");
  damage(buffer, GetParam(), -9);
  damage(buffer, GetParam(), -3);
  damage(buffer, GetParam(), -guard_elements(GetParam()));
  EXPECT_EQ(violations_of(buffer),
            std::vector<std::string>{"output 'y': 3 elements changed before its start, nearest at -3"});
}

TEST_P(BuffersOf, DamageBehindIsCountedAndTheFirstPlaceNamed) {
  GuardedBuffer buffer(*device_, GetParam(), 5, "output 'y'");
  damage(buffer, GetParam(), 5 + 2);
  damage(buffer, GetParam(), 5 + guard_elements(GetParam()) - 1);
  EXPECT_EQ(violations_of(buffer),
            std::vector<std::string>{"output 'y': 2 elements changed behind its end, first at +2"});
}

TEST_P(BuffersOf, UploadAndDownloadMoveThePayloadAlone) {
  GuardedBuffer buffer(*device_, GetParam(), 5, "x");
  const size_t bytes = 5 * info(GetParam()).bytes;
  std::vector<std::byte> sent(bytes), got(bytes);
  for (size_t i = 0; i < bytes; ++i) sent[i] = static_cast<std::byte>(i + 1);
  buffer.upload(sent.data());
  buffer.download(got.data());
  EXPECT_EQ(got, sent);
  EXPECT_EQ(std::memcmp(buffer.data(), sent.data(), bytes), 0);
  EXPECT_TRUE(violations_of(buffer).empty());
}

// --- guards

class Buffers : public testing::Test {
 protected:
  std::unique_ptr<Device> device_ = open_cpu_device();
};

TEST_F(Buffers, GuardBandsAreOnBothSides) {
  GuardedBuffer buffer(*device_, DType::f32, 4, "input 'x'");
  damage(buffer, DType::f32, -1);
  damage(buffer, DType::f32, 4);
  EXPECT_EQ(violations_of(buffer),
            (std::vector<std::string>{"input 'x': 1 element changed before its start, nearest at -1",
                                      "input 'x': 1 element changed behind its end, first at +0"}));
}

TEST_F(Buffers, OneBitOfAGuardIsDamage) {
  GuardedBuffer buffer(*device_, DType::f64, 4, "x");
  *element(buffer, DType::f64, 4) ^= std::byte{1};
  EXPECT_EQ(violations_of(buffer).size(), 1u);
}

TEST_F(Buffers, WritesToThePayloadAreNoDamage) {
  GuardedBuffer buffer(*device_, DType::f32, 4, "x");
  std::memset(buffer.data(), 0, buffer.bytes());
  EXPECT_TRUE(violations_of(buffer).empty());
}

TEST_F(Buffers, ViolationsAreAppended) {
  GuardedBuffer buffer(*device_, DType::f32, 4, "x");
  damage(buffer, DType::f32, 4);
  std::vector<std::string> violations{"earlier"};
  buffer.check_guards(violations);
  ASSERT_EQ(violations.size(), 2u);
  EXPECT_EQ(violations[0], "earlier");
}

TEST_F(Buffers, UnitNamesWhatWasChanged) {
  GuardedBuffer buffer(*device_, DType::u8, 10, "workspace", "byte");
  damage(buffer, DType::u8, 10);
  EXPECT_EQ(violations_of(buffer), std::vector<std::string>{"workspace: 1 byte changed behind its end, first at +0"});
}

TEST_F(Buffers, TellsItsNameAndItsBytesWithoutGuards) {
  GuardedBuffer buffer(*device_, DType::bf16, 10, "input 'x'");
  EXPECT_EQ(buffer.what(), "input 'x'");
  EXPECT_EQ(buffer.bytes(), 20u);
}

TEST_F(Buffers, AnyPatternCanFillThePayload) {
  GuardedBuffer buffer(*device_, DType::i32, 3, "x");
  buffer.poison(0x01020304);
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(load_bits(DType::i32, buffer.data(), i), 0x01020304u);
}

TEST_F(Buffers, BandInFrontTakesTheWholePageThatIsShared) {
  for (const DType dtype : {DType::f32, DType::f64, DType::u8}) {
    for (const int64_t count : {0, 4, 33, 300'000}) {
      DeviceOfLargePages device;
      GuardedBuffer buffer(device, dtype, count, "x", "element", /*offset=*/16, Access::write);
      const auto width = static_cast<int64_t>(info(dtype).bytes);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 256, 16u);
      EXPECT_TRUE(violations_of(buffer).empty());
      EXPECT_LE(device.end - buffer.data() - static_cast<int64_t>(buffer.bytes()), int64_t{2} * 65536);
      for (const std::byte* const place : {device.begin, buffer.data() - 524'288}) {
        if (place < device.begin) continue;
        const int64_t index = -((buffer.data() - place) / width);
        damage(buffer, dtype, index);
        EXPECT_EQ(violations_of(buffer),
                  std::vector<std::string>{fmt::format("x: 1 element changed before its start, nearest at {}", index)});
        damage(buffer, dtype, index);
      }
    }
  }
}

// --- memory

TEST_F(Buffers, MemoryThatIsNotThereIsADeviceErrorWithTheName) {
  try {
    GuardedBuffer buffer(*device_, DType::u8, int64_t{1} << 50, "output 'huge'");
    FAIL() << "no exception";
  } catch (const DeviceError& e) {
    EXPECT_EQ(std::string(e.what()).find("allocate output 'huge' ("), 0u) << e.what();
    EXPECT_FALSE(e.sticky());
  }
}

TEST_F(Buffers, MemoryIsFreedWhenTheGuardsCanNotBeWritten) {
  for (const int fills : {0, 1}) {
    BrokenDevice device(fills);
    EXPECT_THROW(GuardedBuffer(device, DType::f32, 4, "x"), DeviceError) << fills;
    EXPECT_EQ(device.blocks, 0) << fills;
  }
}

TEST_F(Buffers, MemoryIsFreedAtTheEnd) {
  BrokenDevice device(2);
  {
    const GuardedBuffer buffer(device, DType::f32, 4, "x");
    EXPECT_EQ(device.blocks, 1);
  }
  EXPECT_EQ(device.blocks, 0);
}

// --- blocks and differences

TEST_F(Buffers, BlocksCoverASizeThatIsNoMultipleOfTheBlock) {
  const int64_t per_block = kBlockBytes / 4, count = 2 * per_block + 3;
  GuardedBuffer buffer(*device_, DType::f32, count, "x");
  std::vector<std::pair<int64_t, int64_t>> blocks;
  buffer.for_each_block([&](const std::byte*, int64_t first, int64_t n) { blocks.emplace_back(first, n); });
  EXPECT_EQ(blocks,
            (std::vector<std::pair<int64_t, int64_t>>{{0, per_block}, {per_block, per_block}, {2 * per_block, 3}}));
}

TEST_F(Buffers, SizeThatIsAMultipleOfTheBlockHasNoEmptyBlock) {
  GuardedBuffer buffer(*device_, DType::f64, kBlockBytes / 8, "x");
  int64_t blocks = 0;
  buffer.for_each_block([&](const std::byte*, int64_t, int64_t n) {
    ++blocks;
    EXPECT_EQ(n, static_cast<int64_t>(kBlockBytes / 8));
  });
  EXPECT_EQ(blocks, 1);
}

TEST_F(Buffers, BlocksHoldThePayloadInOrder) {
  const int64_t count = kBlockBytes / 4 + 5;
  GuardedBuffer buffer(*device_, DType::i32, count, "x");
  std::vector<int32_t> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int32_t>(i);
  buffer.upload(reinterpret_cast<const std::byte*>(values.data()));
  int64_t next = 0;
  buffer.for_each_block([&](const std::byte* block, int64_t first, int64_t n) {
    ASSERT_EQ(first, next);
    EXPECT_EQ(std::memcmp(block, &values[static_cast<size_t>(first)], static_cast<size_t>(n) * 4), 0) << first;
    next = first + n;
  });
  EXPECT_EQ(next, count);
}

TEST_F(Buffers, NoBlockIsLongerThanSomeMiB) {
  BrokenDevice device(-1);
  GuardedBuffer buffer(device, DType::u8, kBlockBytes + 1, "x");
  buffer.for_each_block([](const std::byte*, int64_t, int64_t) {});
  EXPECT_EQ(device.longest_download, kBlockBytes);
}

TEST_F(Buffers, EqualPayloadHasNoDifference) {
  GuardedBuffer buffer(*device_, DType::f32, 9, "x");
  buffer.poison_output(0);  // NaN equals itself: the comparison is of bits
  const std::vector<std::byte> host(buffer.data(), buffer.data() + buffer.bytes());
  const BitDifference difference = buffer.difference_from(host.data());
  EXPECT_EQ(difference.compared, 9);
  EXPECT_EQ(difference.different, 0);
  EXPECT_EQ(difference.first_index, -1);
}

TEST_F(Buffers, DifferenceHasTheHostsSideAsA) {
  GuardedBuffer buffer(*device_, DType::i32, 4, "x");
  const std::vector<int32_t> host{1, 2, 3, 4};
  buffer.upload(reinterpret_cast<const std::byte*>(host.data()));
  reinterpret_cast<int32_t*>(buffer.data())[2] = 30;
  const BitDifference difference = buffer.difference_from(reinterpret_cast<const std::byte*>(host.data()));
  EXPECT_EQ(difference.different, 1);
  EXPECT_EQ(difference.first_index, 2);
  EXPECT_EQ(difference.a_bits, 3u);
  EXPECT_EQ(difference.b_bits, 30u);
}

TEST_F(Buffers, DifferencesOfAllBlocksAreAddedAndTheFirstIsKept) {
  const int64_t per_block = kBlockBytes, count = 2 * per_block + 10;
  GuardedBuffer buffer(*device_, DType::u8, count, "x");
  buffer.poison(0);
  const std::vector<std::byte> host(static_cast<size_t>(count));
  buffer.data()[per_block + 7] = std::byte{5};
  buffer.data()[per_block + 8] = std::byte{6};
  buffer.data()[2 * per_block + 9] = std::byte{7};
  const BitDifference difference = buffer.difference_from(host.data());
  EXPECT_EQ(difference.compared, count);
  EXPECT_EQ(difference.different, 3);
  EXPECT_EQ(difference.first_index, per_block + 7);
  EXPECT_EQ(difference.b_bits, 5u);
}

}  // namespace
}  // namespace checkop::buffers_test
