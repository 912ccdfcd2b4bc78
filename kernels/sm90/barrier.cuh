// SPDX-License-Identifier: Apache-2.0
// Shared-memory barriers with transaction counts, clusters, and the fences between ordinary and asynchronous accesses.
// Facts: PTX ISA 9.0, "mbarrier", "barrier.cluster", "mapa", "membar/fence" (async proxy).
#pragma once

#include "cuda/common.cuh"

namespace checkop::kernels::sm90 {

/// The shared-memory address that PTX instructions take.
__device__ inline uint32_t shared_address(const void* place) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(place));
}

// A barrier is 8 bytes of shared memory. Its phase ends when `count` threads have arrived and all announced bytes have
// been delivered; then the next phase begins.
constexpr int kBarrierBytes = 8;

__device__ inline void init_barrier(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
/// Call after the last init_barrier() and before any use of the barriers, including use by other blocks of the cluster
/// or by TMA.
__device__ inline void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives and announces `bytes` that TMA will deliver. The zeros that fill the box outside the matrix count too.
__device__ inline void arrive_expecting(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/// Arrives at the barrier that has this address in block `rank` of the cluster. Relaxed, because the arrival only says
/// that wgmma has read its operands, which wait_for_multiply() has ensured: no ordinary access has to be published, and
/// a release would wait for all of global memory.
__device__ inline void arrive_at(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [there];\n}"
      :
      : "r"(barrier), "r"(rank)
      : "memory");
}

/// Waits for the end of the phase of this parity; phases are 0, 1, 0, ... A new barrier counts as having completed a
/// phase of parity 1.
__device__ inline void wait_for(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n.reg .pred ended;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\n"
        "selp.u32 %0, 1, 0, ended;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
}

__device__ inline uint32_t rank_in_cluster() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
/// Waits for all threads of all blocks of the cluster. Relaxed: publishes only what publish_barriers() has published.
__device__ inline void sync_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;" ::: "memory");
}
/// Waits at named barrier `name` (1 .. 15) of the block until `threads` threads have arrived; 0 is __syncthreads().
__device__ inline void sync_threads(int name, int threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

/// Arrives at a named barrier without waiting.
__device__ inline void arrive_threads(int name, int threads) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

/// Orders this thread's ordinary accesses to shared memory before later accesses by TMA or wgmma.
__device__ inline void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// setmaxnreg: sets how many registers each thread of this warpgroup has. All warps of the warpgroup must call it.
template <int count>
__device__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

}  // namespace checkop::kernels::sm90
