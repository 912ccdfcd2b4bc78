// SPDX-License-Identifier: Apache-2.0
// Shapes, shared memory and element access.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <limits>
#include <stdexcept>
#include <utility>

#include "base/error.hpp"
#include "support/message_of.hpp"
#include "tensor/tensor.hpp"

namespace checkop::tensor_test {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 62;

TEST(Shape, ScalarHasOneElement) {
  EXPECT_EQ(element_count({}), 1);
  EXPECT_EQ(to_string(Shape{}), "[]");
}

TEST(Shape, CountIsTheProductOfTheExtents) {
  EXPECT_EQ(element_count({8, 512, 151936}), int64_t{8} * 512 * 151936);
  EXPECT_EQ(to_string(Shape{8, 512, 151936}), "[8, 512, 151936]");
}

TEST(HasNonfinite, FindsOneElementOfAFloatingPointTensor) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (const unsigned threads : {1u, 3u}) {
      Tensor tensor("x", dtype, {3, 5000});
      EXPECT_FALSE(has_nonfinite(tensor, threads));
      for (const double x : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
        tensor.set(14999, x);
        EXPECT_TRUE(has_nonfinite(tensor, threads));
        tensor.set(14999, 1);
        EXPECT_FALSE(has_nonfinite(tensor, threads));
      }
    }
  }
  EXPECT_FALSE(has_nonfinite(Tensor("ids", DType::i64, {4}), 1));
  EXPECT_FALSE(has_nonfinite(Tensor(), 1));
}

TEST(Shape, NegativeExtentIsAnErrorThatNamesIt) {
  try {
    element_count({2, -4, 0});
    FAIL();
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "shape [2, -4, 0]: expected extents ≥ 0, got -4");
  }
}

TEST(Shape, CountBeyondTwoToThe62IsAnError) {
  EXPECT_EQ(element_count({kMaxElements}), kMaxElements);
  EXPECT_EQ(element_count({int64_t{1} << 31, int64_t{1} << 31}), kMaxElements);
  EXPECT_EQ(message_of([] { element_count({kMaxElements + 1}); }),
            "shape [4611686018427387905]: more than 2^62 elements; use smaller dimensions");
  EXPECT_THROW(element_count({int64_t{1} << 31, (int64_t{1} << 31) + 1}), InputError);
  EXPECT_THROW(element_count({int64_t{1} << 32, int64_t{1} << 32, 4}), InputError);  // wraps to 0 in 64 bits
  EXPECT_THROW(element_count({std::numeric_limits<int64_t>::max(), 2}), InputError);
}

TEST(Shape, ZeroExtentMakesZeroElementsHoweverLargeTheOthers) {
  EXPECT_EQ(element_count({kMaxElements, kMaxElements, 0}), 0);
}

TEST(Bytes, NewMemoryIsZeroAndWritable) {
  Bytes bytes(10000);
  ASSERT_EQ(bytes.size(), 10000u);
  for (size_t i = 0; i < bytes.size(); ++i) ASSERT_EQ(bytes.data()[i], std::byte{0});
  bytes.data()[9999] = std::byte{7};
  EXPECT_EQ(bytes.data()[9999], std::byte{7});
}

TEST(Bytes, AnotherMappingSeesTheSamePages) {
  Bytes ours(4096);
  Bytes theirs = Bytes::map(dup(ours.fd()), ours.size(), true);
  ASSERT_NE(theirs.data(), ours.data());
  ours.data()[17] = std::byte{42};
  EXPECT_EQ(theirs.data()[17], std::byte{42});
  theirs.data()[18] = std::byte{43};
  EXPECT_EQ(ours.data()[18], std::byte{43});
}

TEST(Bytes, MappingOutlivesItsMaker) {
  Bytes theirs;
  {
    Bytes ours(4096);
    ours.data()[0] = std::byte{5};
    theirs = Bytes::map(dup(ours.fd()), ours.size(), false);
  }
  EXPECT_EQ(theirs.data()[0], std::byte{5});
}

TEST(Bytes, DescriptorsCloseOnExec) {
  Bytes ours(4096);
  EXPECT_NE(fcntl(ours.fd(), F_GETFD) & FD_CLOEXEC, 0);
  const Bytes theirs = Bytes::map(dup(ours.fd()), ours.size(), true);  // dup clears the flag
  EXPECT_NE(fcntl(theirs.fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(Bytes, SizeZeroNeedsNoDescriptor) {
  const Bytes bytes(0);
  EXPECT_EQ(bytes.size(), 0u);
  EXPECT_EQ(bytes.fd(), -1);
  EXPECT_EQ(Bytes::map(-1, 0, true).size(), 0u);
}

TEST(Bytes, OwnMemoryIsZeroWithoutADescriptorUntilItIsShared) {
  Bytes bytes = Bytes::of_own(1000);
  ASSERT_EQ(bytes.size(), 1000u);
  EXPECT_EQ(bytes.fd(), -1);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % 64, 0u);
  for (size_t i = 0; i < bytes.size(); ++i) ASSERT_EQ(bytes.data()[i], std::byte{0});
  bytes.data()[999] = std::byte{7};
  bytes.share();
  ASSERT_GE(bytes.fd(), 0);
  EXPECT_EQ(Bytes::map(dup(bytes.fd()), bytes.size(), false).data()[999], std::byte{7});
  const int fd = bytes.fd();
  bytes.share();
  EXPECT_EQ(bytes.fd(), fd);
}

TEST(Bytes, TensorsAreSharedIfTheyAreLarge) {
  constexpr auto kMost = static_cast<int64_t>(kMostOwnBytes);
  EXPECT_EQ(Tensor("x", DType::u8, {kMost}).bytes.fd(), -1);
  EXPECT_GE(Tensor("x", DType::u8, {kMost + 1}).bytes.fd(), 0);
}

TEST(Bytes, MapTakesTheDescriptorEvenWhenItFails) {
  const Bytes ours(4096);
  const int copy = dup(ours.fd());
  const std::string hint = "; use smaller dimensions or a machine with more memory";
  EXPECT_EQ(message_of([&] { Bytes::map(copy, 4097, true); }),
            "memory of 4097 bytes (0.0 MiB): map: the other process allocated only 4096 bytes" + hint);
  EXPECT_EQ(message_of([&] { Bytes::map(copy, 4096, true); }),
            "memory of 4096 bytes (0.0 MiB): inspect descriptor: Bad file descriptor" + hint);
  EXPECT_EQ(fcntl(copy, F_GETFD), -1);
  const int second = dup(ours.fd());
  { const Bytes theirs = Bytes::map(second, 4096, true); }
  EXPECT_EQ(fcntl(second, F_GETFD), -1);
}

TEST(Bytes, MemoryThatTheMachineLacksIsAnErrorThatGivesTheSize) {
  const auto has = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  EXPECT_EQ(
      message_of([] { const Bytes bytes(size_t{1} << 60); }),
      fmt::format("memory of 1152921504606846976 bytes (1099511627776.0 MiB): allocate: the machine has {} bytes; use "
                  "smaller dimensions or a machine with more memory",
                  has));
}

TEST(Bytes, MoveLeavesTheSourceEmpty) {
  Bytes first(100);
  std::byte* const data = first.data();
  const int fd = first.fd();
  Bytes second(std::move(first));
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(second.fd(), fd);
  Bytes third(50);
  const int dropped = third.fd();
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(third.size(), 100u);
  EXPECT_EQ(fcntl(dropped, F_GETFD), -1);
  Bytes& same = third;
  third = std::move(same);
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST(Tensor, ElementsAreStoredWithOneRounding) {
  Tensor tensor("x", DType::bf16, {2, 3});
  EXPECT_EQ(tensor.count(), 6);
  EXPECT_EQ(tensor.bytes.size(), 12u);
  EXPECT_EQ(tensor.at(5), 0.0);
  tensor.set(5, 1.2345678);
  EXPECT_EQ(tensor.at(5), 1.234375);
  EXPECT_EQ(tensor.at(4), 0.0);
}

TEST(Tensor, ElementOutOfRangeIsAnError) {
  Tensor tensor("x", DType::f32, {2});
  EXPECT_EQ(message_of([&] { tensor.at(2); }), "x[2]: no element 2");
  EXPECT_THROW(tensor.at(-1), std::out_of_range);
  EXPECT_THROW(tensor.set(2, 0.0), std::out_of_range);
}

TEST(Tensor, SizeInBytesMayNotWrapAround) {
  EXPECT_EQ(message_of([] { Tensor("x", DType::f64, {kMaxElements}); }),
            "shape [4611686018427387904]: more than 2^64 bytes; use smaller dimensions");
  EXPECT_THROW(Tensor("x", DType::f32, {-1}), InputError);
}

TEST(Tensor, EmptyTensorHasNoMemory) {
  const Tensor tensor("x", DType::f32, {0, 5});
  EXPECT_EQ(tensor.count(), 0);
  EXPECT_EQ(tensor.bytes.size(), 0u);
}

TEST(Tensor, RowsDecodeByTheWidthOfTheirTarget) {
  Tensor tensor("x", DType::bf16, {2, 3, 4});
  for (int64_t i = 0; i < 24; ++i) tensor.set(i, static_cast<double>(i));
  std::vector<double> row(4);
  decode_row(tensor, 5, row);
  EXPECT_EQ(row, (std::vector<double>{20, 21, 22, 23}));
}

}  // namespace
}  // namespace checkop::tensor_test
