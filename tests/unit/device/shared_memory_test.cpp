// SPDX-License-Identifier: Apache-2.0
// Arenas that another process maps: blocks, ids, rights, and what becomes of freed memory.
#include "device/shared_memory.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "base/error.hpp"
#include "base/random.hpp"
#include "device/buffers.hpp"
#include "device/device.hpp"

namespace checkop {
namespace {

SharedMemory host_memory(bool read_only_inputs = false, size_t least_bytes = size_t{1} << 16, size_t most_unused = 0) {
  ArenaKind kind = memfd_arenas(read_only_inputs);
  kind.least_bytes = least_bytes;
  kind.most_unused_bytes = most_unused;
  return SharedMemory(std::move(kind));
}

/// An arena as another process maps it.
class Mapping {
 public:
  Mapping(const Arena& arena, int rights) : bytes_(arena.bytes()) {
    const Descriptor descriptor = arena.open();
    memory_ = mmap(nullptr, bytes_, rights, MAP_SHARED, descriptor.get(), 0);
  }
  ~Mapping() {
    if (is_mapped()) munmap(memory_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  bool is_mapped() const { return memory_ != MAP_FAILED; }
  std::byte* at(size_t offset) const { return static_cast<std::byte*>(memory_) + offset; }

 private:
  size_t bytes_;
  void* memory_;
};

TEST(SharedMemory, SmallBlocksShareAnArena) {
  SharedMemory memory = host_memory();
  const std::byte* const a = memory.allocate(0, Access::read);
  const std::byte* const b = memory.allocate(300, Access::read);
  EXPECT_EQ(memory.find(a)->arena, memory.find(b)->arena);
  EXPECT_EQ(memory.find(a)->offset, 0u);
  EXPECT_EQ(memory.find(b)->offset, 256u);
  EXPECT_EQ(memory.find(b + 299)->offset, 555u);
  EXPECT_EQ(memory.size_of(b), 512u);
  EXPECT_FALSE(memory.size_of(b + 1));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b) % 256, 0u);
}

TEST(SharedMemory, InputsAndOutputsLieInArenasOfTheirOwn) {
  SharedMemory memory = host_memory();
  const auto of = [&](Access access) { return memory.find(memory.allocate(8, access))->arena; };
  EXPECT_NE(of(Access::read), of(Access::write));
  EXPECT_EQ(of(Access::read), of(Access::read));
}

TEST(SharedMemory, LargeBlockHasAnArenaOfItsSize) {
  SharedMemory memory = host_memory();
  const std::byte* const block = memory.allocate((size_t{1} << 20) + 1, Access::write);
  EXPECT_EQ(memory.arena(memory.find(block)->arena).bytes(), (size_t{1} << 20) + (size_t{1} << 16));
}

TEST(SharedMemory, ArenaGoesWithItsLastBlockAndItsIdIsNotUsedAgain) {
  SharedMemory memory = host_memory();
  std::byte* const a = memory.allocate(8, Access::write);
  std::byte* const b = memory.allocate(8, Access::write);
  const int64_t id = memory.find(a)->arena;
  memory.free(a);
  EXPECT_TRUE(memory.take_gone().empty());
  memory.free(b);
  EXPECT_EQ(memory.take_gone(), std::vector<int64_t>{id});
  EXPECT_TRUE(memory.take_gone().empty());
  EXPECT_FALSE(memory.find(a));
  EXPECT_NE(memory.find(memory.allocate(8, Access::write))->arena, id);
}

TEST(SharedMemory, UnusedArenaIsKeptForLaterBlocks) {
  SharedMemory memory = host_memory(false, size_t{1} << 16, size_t{1} << 20);
  std::byte* const a = memory.allocate(8, Access::write);
  const int64_t id = memory.find(a)->arena;
  memory.free(a);
  EXPECT_TRUE(memory.take_gone().empty());
  EXPECT_EQ(memory.find(memory.allocate(5000, Access::write))->arena, id);
}

TEST(SharedMemory, UnusedArenasMakeRoomWhenMemoryIsShort) {
  int most = 2;
  ArenaKind kind = memfd_arenas(false);
  const auto make = kind.make;
  kind.make = [&](size_t bytes, Access access) {
    if (most-- == 0) throw OutOfMemory("none left");
    return make(bytes, access);
  };
  SharedMemory memory(std::move(kind));
  std::byte* const a = memory.allocate(8, Access::read);
  memory.free(a);
  memory.allocate(8, Access::write);
  EXPECT_TRUE(memory.take_gone().empty());
  EXPECT_NO_THROW(memory.allocate(size_t{8} << 20, Access::write));  // the first try fails, the arena of `a` goes
  EXPECT_EQ(memory.take_gone(), std::vector<int64_t>{1});
}

// As on devices whose memory can only be mapped as a whole.
TEST(SharedMemory, BlockHasAnArenaOfItsOwnAndAnotherOfItsSizeReusesIt) {
  ArenaKind kind = memfd_arenas(true, Blocks::own_arenas);
  kind.least_bytes = kind.granularity;
  const size_t granule = kind.granularity;
  SharedMemory memory(std::move(kind));
  std::byte* const a = memory.allocate(8, Access::write);
  std::byte* const b = memory.allocate(3 * granule, Access::write);
  EXPECT_NE(memory.find(a)->arena, memory.find(b)->arena);
  EXPECT_EQ(memory.size_of(a), granule);
  EXPECT_EQ(memory.block_bytes(2 * granule + 1), 3 * granule);
  const int64_t id = memory.find(b)->arena;
  const uint64_t number = memory.block_at(b).number;
  memory.free(b);
  std::byte* const smaller = memory.allocate(granule, Access::write);
  EXPECT_NE(memory.find(smaller)->arena, id) << "which would be mapped with it";
  std::byte* const again = memory.allocate(2 * granule + 1, Access::write);
  EXPECT_EQ(memory.find(again)->arena, id);
  EXPECT_EQ(memory.find(again)->offset, 0u);
  EXPECT_NE(memory.block_at(again).number, number);
  EXPECT_FALSE(memory.has(b, number));
  EXPECT_TRUE(memory.has(again, memory.block_at(again).number));
  EXPECT_EQ(memory.frees(), 1u);
}

// One of the processes could have kept its mapping.
TEST(SharedMemory, ArenaIsNotUsedAgainWhereSeveralProcessesMapBlocks) {
  SharedMemory memory(for_sharing(memfd_arenas(true, Blocks::own_pages), Sharing::several_processes));
  std::byte* const a = memory.allocate(8, Access::write);
  std::byte* const b = memory.allocate(8, Access::write);
  const int64_t id = memory.find(a)->arena;
  EXPECT_NE(memory.find(b)->arena, id);
  memory.free(a);
  EXPECT_EQ(memory.take_gone(), std::vector<int64_t>{id});
  EXPECT_NE(memory.find(memory.allocate(8, Access::write))->arena, id);
}

TEST(SharedMemory, FreedBlocksAreLetGoWhereMemoryIsShort) {
  bool is_short = true;
  ArenaKind kind = memfd_arenas(false);
  const auto make = kind.make;
  kind.make = [&](size_t bytes, Access access) {
    if (is_short) throw OutOfMemory("none left");
    return make(bytes, access);
  };
  SharedMemory memory(std::move(kind));
  memory.before_large_block(&memory, [&] { is_short = false; });
  EXPECT_NO_THROW(memory.allocate(8, Access::write));
  is_short = true;
  memory.forget_user(&memory);
  EXPECT_THROW(memory.allocate(size_t{8} << 20, Access::write), OutOfMemory);
}

TEST(SharedMemory, FreedNeighboursAreJoined) {
  for (std::vector<size_t> order{0, 1, 2}; std::next_permutation(order.begin(), order.end());) {
    SharedMemory memory = host_memory();
    std::vector<std::byte*> blocks(3);
    for (std::byte*& block : blocks) block = memory.allocate(1000, Access::write);
    for (const size_t i : order) memory.free(blocks[i]);
    EXPECT_EQ(memory.take_gone(), std::vector<int64_t>{1}) << order[0] << order[1] << order[2];
  }
}

TEST(SharedMemory, BlocksNeverOverlap) {
  SharedMemory memory = host_memory(false, size_t{1} << 18, size_t{1} << 18);
  const Stream stream = Stream::derive(1, "shared", "memory");
  std::map<std::byte*, size_t> blocks;
  std::set<int64_t> gone;
  for (uint64_t i = 0; i < 5000; ++i) {
    if (blocks.size() > 40 || (!blocks.empty() && stream.below(3 * i, 2) == 0)) {
      const auto block = std::next(blocks.begin(), static_cast<int64_t>(stream.below(3 * i + 1, blocks.size())));
      memory.free(block->first);
      blocks.erase(block);
    } else {
      const size_t bytes = stream.below(3 * i + 2, 60000);
      std::byte* const block = memory.allocate(bytes, i % 3 == 0 ? Access::read : Access::write);
      const auto next = blocks.lower_bound(block);
      ASSERT_TRUE(next == blocks.end() || block + bytes <= next->first) << i;
      ASSERT_TRUE(next == blocks.begin() || std::prev(next)->first + std::prev(next)->second <= block) << i;
      std::memset(block, 0x55, bytes);
      blocks[block] = bytes;
    }
    for (const int64_t id : memory.take_gone()) EXPECT_TRUE(gone.insert(id).second) << id;
    for (const auto& [block, bytes] : blocks) ASSERT_FALSE(gone.contains(memory.find(block)->arena));
  }
  for (const auto& [block, bytes] : blocks) memory.free(block);
}

TEST(SharedMemory, SealedInputsCanNotBeMappedForWriting) {
  SharedMemory memory = host_memory(/*read_only_inputs=*/true);
  std::byte* const input = memory.allocate(8, Access::read);
  std::byte* const output = memory.allocate(8, Access::write);
  const Arena& arena = memory.arena(memory.find(input)->arena);
  EXPECT_TRUE(arena.is_read_only());
  EXPECT_FALSE(Mapping(arena, PROT_READ | PROT_WRITE).is_mapped());
  const Mapping reader(arena, PROT_READ);
  ASSERT_TRUE(reader.is_mapped());
  *input = std::byte{7};  // this process still writes
  EXPECT_EQ(*reader.at(0), std::byte{7});
  EXPECT_FALSE(memory.arena(memory.find(output)->arena).is_read_only());
  EXPECT_TRUE(Mapping(memory.arena(memory.find(output)->arena), PROT_READ | PROT_WRITE).is_mapped());
}

TEST(SharedMemory, ArenaCanNotBeResized) {
  for (const bool read_only : {false, true}) {
    SharedMemory memory = host_memory(read_only);
    for (const Access access : {Access::read, Access::write}) {
      const Arena& arena = memory.arena(memory.find(memory.allocate(8, access))->arena);
      const Descriptor descriptor = arena.open();
      EXPECT_NE(ftruncate(descriptor.get(), 0), 0);
      EXPECT_NE(ftruncate(descriptor.get(), static_cast<off_t>(arena.bytes() * 2)), 0);
    }
  }
}

TEST(SharedMemory, DescriptorsAreNewOnesThatDoNotPassToPrograms) {
  SharedMemory memory = host_memory();
  const Arena& arena = memory.arena(memory.find(memory.allocate(8, Access::write))->arena);
  const Descriptor one = arena.open(), two = arena.open();
  EXPECT_NE(one.get(), two.get());
  EXPECT_EQ(fcntl(one.get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST(SharedMemory, GuardBandsActForAnotherProcess) {
  const auto device = open_cpu_device();
  const std::shared_ptr<SharedMemory> memory = device->share_memory(false);
  GuardedBuffer buffer(*device, DType::f32, 10, "output 'y'", "element", 0, Access::write);
  buffer.poison_output(0);
  const SharedMemory::Place place = memory->find(buffer.data()).value();
  const Mapping theirs(memory->arena(place.arena), PROT_READ | PROT_WRITE);
  ASSERT_TRUE(theirs.is_mapped());
  EXPECT_EQ(std::memcmp(theirs.at(place.offset), buffer.data(), buffer.bytes()), 0);
  std::vector<std::string> violations;
  buffer.check_guards(violations);
  EXPECT_TRUE(violations.empty());
  std::memset(theirs.at(place.offset + 4 * 12), 0, 4);
  buffer.check_guards(violations);
  EXPECT_EQ(violations, std::vector<std::string>{"output 'y': 1 element changed behind its end, first at +2"});
}

TEST(SharedMemory, NothingButBuffersOfCandidatesIsShared) {
  const auto device = open_cpu_device();
  const std::shared_ptr<SharedMemory> memory = device->share_memory(false);
  GuardedBuffer own(*device, DType::f32, 10, "copy"), input(*device, DType::f32, 10, "x", "element", 0, Access::read);
  EXPECT_FALSE(memory->find(own.data()));
  EXPECT_TRUE(memory->find(input.data()));
}

TEST(SharedMemory, FreedMemoryHoldsNoAnswer) {
  const auto device = open_cpu_device();
  const std::shared_ptr<SharedMemory> memory = device->share_memory(false);
  auto first = std::make_unique<GuardedBuffer>(*device, DType::f32, 10, "y", "element", 0, Access::write);
  const SharedMemory::Place place = memory->find(first->data()).value();
  const Mapping theirs(memory->arena(place.arena), PROT_READ);
  std::memset(first->data(), 3, first->bytes());
  EXPECT_EQ(*theirs.at(place.offset), std::byte{3});
  first.reset();
  EXPECT_EQ(*theirs.at(place.offset), std::byte{0xff});
}

TEST(SharedMemory, LaunchModesThatNeedTheCandidateHereAreUnsupported) {
  const auto device = open_cpu_device();
  device->share_memory(false);
  EXPECT_THROW(device->run({LaunchMode::Kind::replayed, 0}, [] { return true; }), LaunchModeUnsupported);
}

TEST(SharedMemory, WithoutADriverThereAreNoCudaArenas) {
  if (!cuda_uuid(0).empty()) return;  // this machine has one
  EXPECT_THROW(cuda_arenas(0), EnvironmentError);
}

}  // namespace
}  // namespace checkop
